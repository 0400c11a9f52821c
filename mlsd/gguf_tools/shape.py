"""The shape of a model: its widths and counts, and the tensors that llama.cpp asks for of its architecture."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Literal

from mlsd.records import Record

Architecture = Literal["qwen35", "qwen35moe", "llama", "falcon-h1", "qwen2", "qwen3", "qwen3moe"]

# What a tensor is for. It decides how random weights are scaled, which tensors keep full precision when the rest is
# quantized, and what is read for one token.
Kind = Literal[
    "embedding",
    "head",
    "norm",
    "matrix",
    "experts",
    "router",
    "shared_gate",
    "bias",
    "conv",
    "conv_bias",
    "decay",
    "skip",
    "time_step",
]


class Shape(Record, frozen=True, kw_only=True):
    """Widths and counts of one model. Zero means that the part does not exist."""

    name: str
    architecture: Architecture
    n_layers: int  # trunk blocks, multi-token-prediction blocks excluded
    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int = 0  # dense feed-forward width
    n_experts: int = 0
    n_experts_used: int = 0
    n_ff_expert: int = 0
    n_ff_shared: int = 0  # the expert every token uses
    full_attention_interval: int = 0  # every so many-th block has attention, the others a recurrent mixer
    conv_kernel: int = 0
    state_size: int = 0  # recurrent head width (qwen35) or state width (falcon-h1)
    n_groups: int = 0  # key heads (qwen35) or groups (falcon-h1)
    n_state_heads: int = 0  # value heads (qwen35) or heads (falcon-h1)
    inner_size: int = 0  # width of the recurrent mixer's values
    n_mtp_blocks: int = 0  # multi-token-prediction blocks stored after the trunk
    tied_embeddings: bool = False  # the LM head is the embedding table
    n_ctx_train: int = 4096
    rope_dim: int = 0  # rotated dimensions a head; 0: all of them
    rope_base: float = 10_000.0
    rope_sections: tuple[int, int, int, int] | None = None  # qwen35 splits the rotation over four axes
    rms_eps: float = 1e-6

    def is_recurrent(self, layer: int) -> bool:
        """Whether block `layer` mixes with a recurrent state (falcon-h1: both, so every block)."""
        if self.architecture == "falcon-h1":
            return True
        if not self.full_attention_interval or layer >= self.n_layers:
            return False
        return (layer + 1) % self.full_attention_interval != 0

    @property
    def writable(self) -> bool:
        return not (self.architecture == "qwen3moe" and self.n_ff_shared)

    @property
    def n_parameters(self) -> int:
        """All weights, prediction blocks included where the shape has them."""
        return sum(spec.n_weights for spec in tensors(self))


class TensorSpec(Record, frozen=True, kw_only=True):
    """One tensor: `dims` in GGUF order, the contiguous dimension (a row's length) first."""

    name: str
    dims: tuple[int, ...]
    kind: Kind

    @property
    def n_weights(self) -> int:
        return prod(self.dims)

    @property
    def part(self) -> str:
        """The name inside its block: ``blk.3.attn_q.weight`` -> ``attn_q``."""
        names = self.name.split(".")
        return names[2] if names[0] == "blk" and len(names) > 2 else names[0]


def tensors(shape: Shape) -> Iterator[TensorSpec]:
    """All tensors of the shape, in file order."""
    yield TensorSpec(name="token_embd.weight", dims=(shape.n_embd, shape.n_vocab), kind="embedding")
    yield TensorSpec(name="output_norm.weight", dims=(shape.n_embd,), kind="norm")
    if not shape.tied_embeddings:
        yield TensorSpec(name="output.weight", dims=(shape.n_embd, shape.n_vocab), kind="head")
    for layer in range(shape.n_layers + shape.n_mtp_blocks):
        for name, dims, kind in _block(shape, layer):
            yield TensorSpec(name=f"blk.{layer}.{name}", dims=dims, kind=kind)


_Part = tuple[str, tuple[int, ...], Kind]


def _block(shape: Shape, layer: int) -> Iterator[_Part]:
    n_embd = shape.n_embd
    yield "attn_norm.weight", (n_embd,), "norm"
    if shape.architecture in ("qwen35", "qwen35moe"):
        yield "post_attention_norm.weight", (n_embd,), "norm"
        yield from _delta_net(shape) if shape.is_recurrent(layer) else _attention(shape, gated=True)
    else:
        # falcon-h1 alone names this tensor without a suffix.
        suffix = "" if shape.architecture == "falcon-h1" else ".weight"
        yield f"ffn_norm{suffix}", (n_embd,), "norm"
        if shape.architecture == "falcon-h1":
            yield from _mamba(shape)
        yield from _attention(shape, gated=False)
    yield from _experts(shape) if shape.n_experts else _feed_forward(n_embd, shape.n_ff, "")
    if layer >= shape.n_layers:
        yield "nextn.eh_proj.weight", (2 * n_embd, n_embd), "matrix"
        yield "nextn.enorm.weight", (n_embd,), "norm"
        yield "nextn.hnorm.weight", (n_embd,), "norm"
        yield "nextn.shared_head_norm.weight", (n_embd,), "norm"


def _attention(shape: Shape, *, gated: bool) -> Iterator[_Part]:
    """Softmax attention; `gated` doubles the query projection: a gate for each head.

    All kinds of Qwen3 normalise queries and keys; Qwen2 adds biases to them and to the values.
    """
    n_embd, width, width_kv = shape.n_embd, shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    yield "attn_q.weight", (n_embd, 2 * width if gated else width), "matrix"
    yield "attn_k.weight", (n_embd, width_kv), "matrix"
    yield "attn_v.weight", (n_embd, width_kv), "matrix"
    yield "attn_output.weight", (width, n_embd), "matrix"
    if shape.architecture == "qwen2":
        yield "attn_q.bias", (width,), "bias"
        yield "attn_k.bias", (width_kv,), "bias"
        yield "attn_v.bias", (width_kv,), "bias"
    if shape.architecture.startswith("qwen3"):
        yield "attn_q_norm.weight", (shape.head_dim,), "norm"
        yield "attn_k_norm.weight", (shape.head_dim,), "norm"


def _delta_net(shape: Shape) -> Iterator[_Part]:
    """Gated DeltaNet, the recurrent mixer of qwen35."""
    n_embd, values = shape.n_embd, shape.inner_size
    channels = 2 * shape.n_groups * shape.state_size + values
    yield "attn_qkv.weight", (n_embd, channels), "matrix"
    yield "attn_gate.weight", (n_embd, values), "matrix"
    yield "ssm_conv1d.weight", (shape.conv_kernel, channels), "conv"
    yield "ssm_dt.bias", (shape.n_state_heads,), "time_step"
    yield "ssm_a", (shape.n_state_heads,), "decay"
    yield "ssm_beta.weight", (n_embd, shape.n_state_heads), "matrix"
    yield "ssm_alpha.weight", (n_embd, shape.n_state_heads), "matrix"
    yield "ssm_norm.weight", (shape.state_size,), "norm"
    yield "ssm_out.weight", (values, n_embd), "matrix"


def _mamba(shape: Shape) -> Iterator[_Part]:
    """Mamba-2, the recurrent half of a falcon-h1 block."""
    channels = shape.inner_size + 2 * shape.n_groups * shape.state_size
    yield "ssm_in.weight", (shape.n_embd, shape.inner_size + channels + shape.n_state_heads), "matrix"
    yield "ssm_conv1d.weight", (shape.conv_kernel, channels), "conv"
    yield "ssm_conv1d.bias", (channels,), "conv_bias"
    yield "ssm_dt.bias", (shape.n_state_heads,), "time_step"
    yield "ssm_a", (1, shape.n_state_heads), "decay"
    yield "ssm_d", (1, shape.n_state_heads), "skip"
    yield "ssm_out.weight", (shape.inner_size, shape.n_embd), "matrix"


def _experts(shape: Shape) -> Iterator[_Part]:
    n_embd, width, count = shape.n_embd, shape.n_ff_expert, shape.n_experts
    yield "ffn_gate_inp.weight", (n_embd, count), "router"
    yield "ffn_gate_exps.weight", (n_embd, width, count), "experts"
    yield "ffn_up_exps.weight", (n_embd, width, count), "experts"
    yield "ffn_down_exps.weight", (width, n_embd, count), "experts"
    if shape.n_ff_shared:
        yield "ffn_gate_inp_shexp.weight", (n_embd,), "shared_gate"
        yield from _feed_forward(n_embd, shape.n_ff_shared, "_shexp")


def _feed_forward(n_embd: int, width: int, suffix: str) -> Iterator[_Part]:
    yield f"ffn_gate{suffix}.weight", (n_embd, width), "matrix"
    yield f"ffn_up{suffix}.weight", (n_embd, width), "matrix"
    yield f"ffn_down{suffix}.weight", (width, n_embd), "matrix"

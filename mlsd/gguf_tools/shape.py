"""The shape of a model: its widths and counts, and the tensors that llama.cpp asks for of its architecture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from mlsd.gguf_tools.tensor import Tensor
from mlsd.records import Record

Architecture = Literal["qwen35", "qwen35moe", "llama", "falcon-h1", "qwen2", "qwen3", "qwen3moe"]

SYNTHETIC = "mlsd.synthetic"  # the key that marks random weights


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
    def keys(self) -> dict[str, Any]:
        """What llama.cpp reads of its header: the architecture's own keys, without their prefix."""
        keys: dict[str, Any] = {
            "vocab_size": self.n_vocab,
            "block_count": self.n_layers + self.n_mtp_blocks,
            "context_length": self.n_ctx_train,
            "embedding_length": self.n_embd,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": float(self.rms_eps),
            "rope.dimension_count": self.rope_dim or self.head_dim,
            "rope.freq_base": float(self.rope_base),
        }
        if self.n_ff:
            keys["feed_forward_length"] = self.n_ff
        if self.rope_sections:
            keys["rope.dimension_sections"] = list(self.rope_sections)
        if self.conv_kernel:
            keys["ssm.conv_kernel"] = self.conv_kernel
            keys["ssm.state_size"] = self.state_size
            keys["ssm.group_count"] = self.n_groups
            keys["ssm.time_step_rank"] = self.n_state_heads
            keys["ssm.inner_size"] = self.inner_size
        if self.full_attention_interval:
            keys["full_attention_interval"] = self.full_attention_interval
        if self.n_mtp_blocks:
            keys["nextn_predict_layers"] = self.n_mtp_blocks
        if self.n_experts:
            keys["expert_count"] = self.n_experts
            keys["expert_used_count"] = self.n_experts_used
            keys["expert_feed_forward_length"] = self.n_ff_expert
            keys["expert_shared_feed_forward_length"] = self.n_ff_shared
        return keys

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in file order."""
        return tuple(_tensors(self))

    @property
    def n_parameters(self) -> int:
        """All weights, prediction blocks included where the shape has them."""
        return sum(tensor.n_weights for tensor in self.tensors)


def _tensors(shape: Shape) -> Iterator[Tensor]:
    yield Tensor(name="token_embd.weight", dims=(shape.n_embd, shape.n_vocab))
    yield Tensor(name="output_norm.weight", dims=(shape.n_embd,))
    if not shape.tied_embeddings:
        yield Tensor(name="output.weight", dims=(shape.n_embd, shape.n_vocab))
    for layer in range(shape.n_layers + shape.n_mtp_blocks):
        for name, dims in _block(shape, layer):
            yield Tensor(name=f"blk.{layer}.{name}", dims=dims)


_Part = tuple[str, tuple[int, ...]]


def _block(shape: Shape, layer: int) -> Iterator[_Part]:
    n_embd = shape.n_embd
    yield "attn_norm.weight", (n_embd,)
    if shape.architecture in ("qwen35", "qwen35moe"):
        yield "post_attention_norm.weight", (n_embd,)
        yield from _delta_net(shape) if shape.is_recurrent(layer) else _attention(shape, gated=True)
    else:
        # falcon-h1 alone names this tensor without a suffix.
        suffix = "" if shape.architecture == "falcon-h1" else ".weight"
        yield f"ffn_norm{suffix}", (n_embd,)
        if shape.architecture == "falcon-h1":
            yield from _mamba(shape)
        yield from _attention(shape, gated=False)
    yield from _experts(shape) if shape.n_experts else _feed_forward(n_embd, shape.n_ff, "")
    if layer >= shape.n_layers:
        yield "nextn.eh_proj.weight", (2 * n_embd, n_embd)
        yield "nextn.enorm.weight", (n_embd,)
        yield "nextn.hnorm.weight", (n_embd,)
        yield "nextn.shared_head_norm.weight", (n_embd,)


def _attention(shape: Shape, *, gated: bool) -> Iterator[_Part]:
    """Softmax attention; `gated` doubles the query projection: a gate for each head.

    All kinds of Qwen3 normalise queries and keys; Qwen2 adds biases to them and to the values.
    """
    n_embd, width, width_kv = shape.n_embd, shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    yield "attn_q.weight", (n_embd, 2 * width if gated else width)
    yield "attn_k.weight", (n_embd, width_kv)
    yield "attn_v.weight", (n_embd, width_kv)
    yield "attn_output.weight", (width, n_embd)
    if shape.architecture == "qwen2":
        yield "attn_q.bias", (width,)
        yield "attn_k.bias", (width_kv,)
        yield "attn_v.bias", (width_kv,)
    if shape.architecture.startswith("qwen3"):
        yield "attn_q_norm.weight", (shape.head_dim,)
        yield "attn_k_norm.weight", (shape.head_dim,)


def _delta_net(shape: Shape) -> Iterator[_Part]:
    """Gated DeltaNet, the recurrent mixer of qwen35."""
    n_embd, values = shape.n_embd, shape.inner_size
    channels = 2 * shape.n_groups * shape.state_size + values
    yield "attn_qkv.weight", (n_embd, channels)
    yield "attn_gate.weight", (n_embd, values)
    yield "ssm_conv1d.weight", (shape.conv_kernel, channels)
    yield "ssm_dt.bias", (shape.n_state_heads,)
    yield "ssm_a", (shape.n_state_heads,)
    yield "ssm_beta.weight", (n_embd, shape.n_state_heads)
    yield "ssm_alpha.weight", (n_embd, shape.n_state_heads)
    yield "ssm_norm.weight", (shape.state_size,)
    yield "ssm_out.weight", (values, n_embd)


def _mamba(shape: Shape) -> Iterator[_Part]:
    """Mamba-2, the recurrent half of a falcon-h1 block."""
    channels = shape.inner_size + 2 * shape.n_groups * shape.state_size
    yield "ssm_in.weight", (shape.n_embd, shape.inner_size + channels + shape.n_state_heads)
    yield "ssm_conv1d.weight", (shape.conv_kernel, channels)
    yield "ssm_conv1d.bias", (channels,)
    yield "ssm_dt.bias", (shape.n_state_heads,)
    yield "ssm_a", (1, shape.n_state_heads)
    yield "ssm_d", (1, shape.n_state_heads)
    yield "ssm_out.weight", (shape.inner_size, shape.n_embd)


def _experts(shape: Shape) -> Iterator[_Part]:
    n_embd, width, count = shape.n_embd, shape.n_ff_expert, shape.n_experts
    yield "ffn_gate_inp.weight", (n_embd, count)
    yield "ffn_gate_exps.weight", (n_embd, width, count)
    yield "ffn_up_exps.weight", (n_embd, width, count)
    yield "ffn_down_exps.weight", (width, n_embd, count)
    if shape.n_ff_shared:
        yield "ffn_gate_inp_shexp.weight", (n_embd,)
        yield from _feed_forward(n_embd, shape.n_ff_shared, "_shexp")


def _feed_forward(n_embd: int, width: int, suffix: str) -> Iterator[_Part]:
    yield f"ffn_gate{suffix}.weight", (n_embd, width)
    yield f"ffn_up{suffix}.weight", (n_embd, width)
    yield f"ffn_down{suffix}.weight", (width, n_embd)

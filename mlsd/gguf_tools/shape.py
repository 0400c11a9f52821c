"""The shape of a model: its widths and counts, and the tensors that llama.cpp asks for of its architecture.

Known by name are tiny ones for tests and demonstrations, and full-size ones to be written synthetically.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from mlsd.gguf_tools.tensor import Tensor, read_tensors
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
    def is_qwen35(self) -> bool:
        return self.architecture in ("qwen35", "qwen35moe")

    @property
    def writable(self) -> bool:
        return not (self.architecture == "qwen3moe" and self.n_ff_shared)

    @property
    def keys(self) -> dict[str, Any]:
        """What llama.cpp reads of its header: the architecture's own keys, without their prefix."""
        values = msgspec.structs.asdict(self) | {
            "n_blocks": self.n_layers + self.n_mtp_blocks,
            "n_rotated": self.rope_dim or self.head_dim,
            "rope_sections": list(self.rope_sections or ()),
        }
        lines = ",".join(keys for part, keys in _KEYS.items() if values[part]).split(",")
        return {key: values[field] for key, field in map(str.split, lines)}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in file order."""
        return tuple(_tensors(self))

    @property
    def n_parameters(self) -> int:
        """All weights, prediction blocks included where the shape has them."""
        return sum(tensor.n_weights for tensor in self.tensors)


# What a model must have -> its keys, and which number each says.
_KEYS = {
    "n_embd": """vocab_size n_vocab, block_count n_blocks, context_length n_ctx_train, embedding_length n_embd,
        attention.head_count n_head, attention.head_count_kv n_head_kv, attention.key_length head_dim,
        attention.value_length head_dim, attention.layer_norm_rms_epsilon rms_eps, rope.dimension_count n_rotated,
        rope.freq_base rope_base""",
    "n_ff": "feed_forward_length n_ff",
    "rope_sections": "rope.dimension_sections rope_sections",
    "conv_kernel": """ssm.conv_kernel conv_kernel, ssm.state_size state_size, ssm.group_count n_groups,
        ssm.time_step_rank n_state_heads, ssm.inner_size inner_size""",
    "full_attention_interval": "full_attention_interval full_attention_interval",
    "n_mtp_blocks": "nextn_predict_layers n_mtp_blocks",
    "n_experts": """expert_count n_experts, expert_used_count n_experts_used, expert_feed_forward_length n_ff_expert,
        expert_shared_feed_forward_length n_ff_shared""",
}
# The tensors of each part: name and widths, the length of a row first.
_PARTS = {
    "outer": "token_embd.weight n_embd n_vocab, output_norm.weight n_embd",
    "head": "output.weight n_embd n_vocab",
    "norm": "attn_norm.weight n_embd",
    "post norm": "post_attention_norm.weight n_embd",
    "ffn norm": "ffn_norm.weight n_embd",
    "falcon-h1's ffn norm": "ffn_norm n_embd",  # it alone names this tensor without a suffix
    "attention": """attn_q.weight n_embd queries, attn_k.weight n_embd keys, attn_v.weight n_embd keys,
        attn_output.weight heads n_embd""",
    "biases": "attn_q.bias queries, attn_k.bias keys, attn_v.bias keys",
    "head norms": "attn_q_norm.weight head_dim, attn_k_norm.weight head_dim",
    # Gated DeltaNet, the recurrent mixer of qwen35.
    "delta net": """attn_qkv.weight n_embd channels, attn_gate.weight n_embd inner_size,
        ssm_conv1d.weight conv_kernel channels, ssm_dt.bias n_state_heads, ssm_a n_state_heads,
        ssm_beta.weight n_embd n_state_heads, ssm_alpha.weight n_embd n_state_heads, ssm_norm.weight state_size,
        ssm_out.weight inner_size n_embd""",
    # Mamba-2, the recurrent half of a falcon-h1 block.
    "mamba": """ssm_in.weight n_embd projected, ssm_conv1d.weight conv_kernel channels, ssm_conv1d.bias channels,
        ssm_dt.bias n_state_heads, ssm_a 1 n_state_heads, ssm_d 1 n_state_heads,
        ssm_out.weight inner_size n_embd""",
    "ffn": "ffn_gate.weight n_embd n_ff, ffn_up.weight n_embd n_ff, ffn_down.weight n_ff n_embd",
    "experts": """ffn_gate_inp.weight n_embd n_experts, ffn_gate_exps.weight n_embd n_ff_expert n_experts,
        ffn_up_exps.weight n_embd n_ff_expert n_experts, ffn_down_exps.weight n_ff_expert n_embd n_experts""",
    "shared expert": """ffn_gate_inp_shexp.weight n_embd, ffn_gate_shexp.weight n_embd n_ff_shared,
        ffn_up_shexp.weight n_embd n_ff_shared, ffn_down_shexp.weight n_ff_shared n_embd""",
    "next token": """nextn.eh_proj.weight n_embd_twice n_embd, nextn.enorm.weight n_embd, nextn.hnorm.weight n_embd,
        nextn.shared_head_norm.weight n_embd""",
}


def _tensors(shape: Shape) -> Iterator[Tensor]:
    heads, channels = shape.n_head * shape.head_dim, shape.inner_size + 2 * shape.n_groups * shape.state_size
    widths = msgspec.structs.asdict(shape) | {
        "n_embd_twice": 2 * shape.n_embd,
        "heads": heads,
        "queries": 2 * heads if shape.is_qwen35 else heads,  # with a gate for each head
        "keys": shape.n_head_kv * shape.head_dim,
        "channels": channels,
        "projected": shape.inner_size + channels + shape.n_state_heads,
    }
    parts = [(f"blk.{layer}.", _block(shape, layer)) for layer in range(shape.n_layers + shape.n_mtp_blocks)]
    parts.insert(0, ("", ("outer",) if shape.tied_embeddings else ("outer", "head")))
    for prefix, names in parts:
        yield from read_tensors(",".join(_PARTS[part] for part in names), widths, prefix)


def _block(shape: Shape, layer: int) -> tuple[str, ...]:
    """The parts of a block."""
    is_falcon, is_delta_net = shape.architecture == "falcon-h1", shape.is_qwen35 and shape.is_recurrent(layer)
    has = {
        "norm": True,
        "post norm": shape.is_qwen35,
        "ffn norm": not shape.is_qwen35 and not is_falcon,
        "falcon-h1's ffn norm": is_falcon,
        "mamba": is_falcon,
        "delta net": is_delta_net,
        "attention": not is_delta_net,
        "biases": shape.architecture == "qwen2",
        "head norms": shape.architecture.startswith("qwen3") and not is_delta_net,
        "ffn": not shape.n_experts,
        "experts": shape.n_experts,
        "shared expert": shape.n_experts and shape.n_ff_shared,
        "next token": layer >= shape.n_layers,
    }
    return tuple(part for part, present in has.items() if present)


# --- shapes by name ---------------------------------------------------------------------------------------------------


TINY_VOCAB = 512


def _shape(
    name: str,
    n_layers: int,
    n_embd: int,
    n_ff: int,
    heads: tuple[int, int, int],
    n_vocab: int,
    architecture: Architecture = "llama",
    **more: Any,
) -> Shape:
    """`heads` are those of queries, of keys, and the width of one."""
    return Shape(
        name=name,
        architecture=architecture,
        n_layers=n_layers,
        n_embd=n_embd,
        n_ff=n_ff,
        n_head=heads[0],
        n_head_kv=heads[1],
        head_dim=heads[2],
        n_vocab=n_vocab,
        **more,
    )


def _like(shape: Shape, architecture: Architecture, **changed: Any) -> Shape:
    return msgspec.structs.replace(shape, **{"name": architecture, "architecture": architecture, **changed})


def _delta_net(n_state_heads: int, state_size: int = 128, n_groups: int = 16) -> dict[str, Any]:
    """Recurrent mixers in three of four blocks."""
    sizes = {"state_size": state_size, "n_groups": n_groups, "inner_size": state_size * n_state_heads}
    return {"full_attention_interval": 4, "conv_kernel": 4, "n_state_heads": n_state_heads, **sizes}


_ROPE: dict[str, Any] = {"rope_dim": 64, "rope_sections": (11, 11, 10, 0)}
_TINY_ROPE: dict[str, Any] = {"rope_dim": 32, "rope_sections": (6, 5, 5, 0)}
_EXPERTS: dict[str, Any] = {"n_ff": 0, "n_experts": 16, "n_experts_used": 4, "n_ff_expert": 64}
_MAMBA: dict[str, Any] = {"conv_kernel": 4, "state_size": 128, "n_groups": 1, "n_state_heads": 4, "inner_size": 128}
_TINY_QWEN = _shape(
    "qwen35", 8, 64, 192, (2, 1, 64), TINY_VOCAB, "qwen35", **_delta_net(4, state_size=32, n_groups=2), **_TINY_ROPE
)
_TINY_LLAMA = _shape("llama", 6, 64, 192, (2, 1, 64), TINY_VOCAB)
# Eight recurrent or parallel blocks are enough for layer subsets, few enough for thousands of tokens a second.
TINY: dict[str, Shape] = {
    "qwen35": _TINY_QWEN,
    "qwen35moe": _like(_TINY_QWEN, "qwen35moe", **_EXPERTS, n_ff_shared=64),
    "llama": _TINY_LLAMA,
    "falcon-h1": _like(_TINY_LLAMA, "falcon-h1", n_layers=4, **_MAMBA),
}
# Attention-only Qwen models: biases on queries, keys and values; normalised heads; experts. Written only by name.
TINY_ATTENTION: dict[str, Shape] = {
    "qwen2": _like(_TINY_LLAMA, "qwen2", head_dim=32),
    "qwen3": _like(_TINY_LLAMA, "qwen3"),
    "qwen3moe": _like(_TINY_LLAMA, "qwen3moe", **_EXPERTS),
}

_RANDOM_MIXTURE = {"n_experts": 32, "n_experts_used": 4, "n_ff_expert": 320, "n_ff_shared": 2048}
_RANDOM_MIXERS = {**_delta_net(12, n_groups=6), **_ROPE}
# A mixture large enough that its passes cost more than anything around them, and a draft that costs next to nothing:
# what a loop prints that does not check its passes (suite G). Both have the tokens of the tiny models.
RANDOM: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _shape("random-moe", 16, 768, 0, (6, 2, 128), TINY_VOCAB, "qwen35moe", **_RANDOM_MIXERS, **_RANDOM_MIXTURE),
        _like(_TINY_LLAMA, "llama", name="random-draft", n_layers=1),
    )
}


def _hybrid(n_state_heads: int, architecture: Architecture = "qwen35") -> dict[str, Any]:
    """What all sizes of Qwen3.5 share, without vision tower and multi-token-prediction block."""
    trained = {"n_ctx_train": 262_144, "rope_base": 1e7}
    return {"architecture": architecture, **_delta_net(n_state_heads), **_ROPE, **trained}


_TIED: dict[str, Any] = {"tied_embeddings": True}
_MIXTURE: dict[str, Any] = {"n_experts": 256, "n_experts_used": 8, "n_ff_expert": 512, "n_ff_shared": 512}
_QWEN3_MIXTURE = {"n_experts": 128, "n_experts_used": 8, "n_ff_expert": 768}
_LARGE_MIXTURE: dict[str, Any] = {**_MIXTURE, "n_ff_expert": 1024, "n_ff_shared": 1024}
_GEMMA_MIXTURE = {"n_experts": 128, "n_experts_used": 8, "n_ff_expert": 704, "n_ff_shared": 2112}
_SMOLLM2: dict[str, Any] = {"n_ctx_train": 8192, "rope_base": 100_000.0, "rms_eps": 1e-5}
_MIXTRAL = {"n_experts": 8, "n_experts_used": 2, "n_ff_expert": 14_336}
# Numbers of the public configurations (config.json of each model). Gemma, Phi, Mistral and Mixtral are written as a
# graph with matrices of the same sizes: what a pass reads is theirs, not what it computes between matrices.
FULL: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _shape("qwen3.5-0.8b", 24, 1024, 3584, (8, 2, 256), 248_320, **_hybrid(16), **_TIED),
        _shape("qwen3.5-2b", 24, 2048, 6144, (8, 2, 256), 248_320, **_hybrid(16), **_TIED),
        _shape("qwen3.5-4b", 32, 2560, 9216, (16, 4, 256), 248_320, **_hybrid(32), **_TIED),
        _shape("qwen3.5-9b", 32, 4096, 12_288, (16, 4, 256), 248_320, **_hybrid(32)),
        _shape("qwen3.5-27b", 64, 5120, 17_408, (24, 4, 256), 248_320, **_hybrid(48)),
        _shape("qwen3.5-35b-a3b", 40, 2048, 0, (16, 2, 256), 248_320, **_hybrid(32, "qwen35moe"), **_MIXTURE),
        _shape("qwen3.5-122b-a10b", 48, 3072, 0, (32, 2, 256), 248_320, **_hybrid(64, "qwen35moe"), **_LARGE_MIXTURE),
        _shape("qwen3-0.6b", 28, 1024, 3072, (16, 8, 128), 151_936, "qwen3", **_TIED),
        _shape("qwen3-1.7b", 28, 2048, 6144, (16, 8, 128), 151_936, "qwen3", **_TIED),
        _shape("qwen3-4b", 36, 2560, 9728, (32, 8, 128), 151_936, "qwen3", **_TIED),
        _shape("qwen3-8b", 36, 4096, 12_288, (32, 8, 128), 151_936, "qwen3"),
        _shape("qwen3-14b", 40, 5120, 17_408, (40, 8, 128), 151_936, "qwen3"),
        _shape("qwen3-32b", 64, 5120, 25_600, (64, 8, 128), 151_936, "qwen3"),
        _shape("qwen3-30b-a3b", 48, 2048, 0, (32, 4, 128), 151_936, "qwen3moe", **_QWEN3_MIXTURE),
        _shape("qwen2.5-0.5b", 24, 896, 4864, (14, 2, 64), 151_936, "qwen2", **_TIED),
        _shape("qwen2.5-1.5b", 28, 1536, 8960, (12, 2, 128), 151_936, "qwen2", **_TIED),
        _shape("qwen2.5-3b", 36, 2048, 11_008, (16, 2, 128), 151_936, "qwen2", **_TIED),
        _shape("qwen2.5-7b", 28, 3584, 18_944, (28, 4, 128), 152_064, "qwen2"),
        _shape("qwen2.5-14b", 48, 5120, 13_824, (40, 8, 128), 152_064, "qwen2"),
        _shape("qwen2.5-32b", 64, 5120, 27_648, (40, 8, 128), 152_064, "qwen2"),
        _shape("qwen2.5-72b", 80, 8192, 29_568, (64, 8, 128), 152_064, "qwen2"),
        _shape("llama-2-7b", 32, 4096, 11_008, (32, 32, 128), 32_000),
        _shape("llama-3.1-8b", 32, 4096, 14_336, (32, 8, 128), 128_256),
        _shape("llama-3.2-1b", 16, 2048, 8192, (32, 8, 64), 128_256, **_TIED),
        _shape("llama-3.2-3b", 28, 3072, 8192, (24, 8, 128), 128_256, **_TIED),
        _shape("llama-3.3-70b", 80, 8192, 28_672, (64, 8, 128), 128_256),
        _shape("gemma-3-1b", 26, 1152, 6912, (4, 1, 256), 262_144, **_TIED),
        _shape("gemma-3-4b", 34, 2560, 10_240, (8, 4, 256), 262_208, **_TIED),
        _shape("gemma-3-12b", 48, 3840, 15_360, (16, 8, 256), 262_208, **_TIED),
        _shape("gemma-3-27b", 62, 5376, 21_504, (32, 16, 128), 262_208, **_TIED),
        _shape("gemma-4-12b", 48, 3840, 15_360, (16, 8, 256), 262_144, **_TIED),
        _shape("gemma-4-26b-a4b", 30, 2816, 0, (16, 8, 256), 262_144, "qwen3moe", **_GEMMA_MIXTURE, **_TIED),
        _shape("gemma-4-31b", 60, 5376, 21_504, (32, 16, 256), 262_144, **_TIED),
        _shape("mistral-7b", 32, 4096, 14_336, (32, 8, 128), 32_768),
        _shape("mistral-small-24b", 40, 5120, 32_768, (32, 8, 128), 131_072),
        _shape("mixtral-8x7b", 32, 4096, 0, (32, 8, 128), 32_000, "qwen3moe", **_MIXTRAL),
        _shape("phi-4", 40, 5120, 17_920, (40, 10, 128), 100_352),
        _shape("tinyllama-1.1b", 22, 2048, 5632, (32, 4, 64), 32_000),
        _shape("smollm2-1.7b", 24, 2048, 8192, (32, 32, 64), 49_152, **_TIED),
        _shape("smollm2-135m", 30, 576, 1536, (9, 3, 64), 49_152, **_TIED, **_SMOLLM2),
    )
}
# Other models of the same sizes, by how their names begin.
SAME_SHAPE = {
    "deepseek-r1-distill-llama-70b": "llama-3.3-70b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "llama-3.1-70b": "llama-3.3-70b",
    "qwen2.5-coder-14b": "qwen2.5-14b",
    "qwen2.5-coder-32b": "qwen2.5-32b",
    "qwen2.5-coder-3b": "qwen2.5-3b",
    "qwen2.5-coder-7b": "qwen2.5-7b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "qwen3.6-27b": "qwen3.5-27b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    "qwen3.8-27b": "qwen3.5-27b",
}

"""The shapes mlsd knows by name: tiny ones for tests and demonstrations, full-size ones to be written synthetically."""

from __future__ import annotations

from typing import Any

import msgspec

from mlsd.gguf_tools.shape import Architecture, Shape

TINY_VOCAB = 512

_TINY_QWEN = Shape(
    name="qwen35",
    architecture="qwen35",
    n_layers=8,
    n_embd=64,
    n_vocab=TINY_VOCAB,
    n_head=2,
    n_head_kv=1,
    head_dim=64,
    n_ff=192,
    full_attention_interval=4,
    conv_kernel=4,
    state_size=32,
    n_groups=2,
    n_state_heads=4,
    inner_size=128,
    rope_dim=32,
    rope_sections=(6, 5, 5, 0),
)
_TINY_LLAMA = Shape(
    name="llama",
    architecture="llama",
    n_layers=6,
    n_embd=64,
    n_vocab=TINY_VOCAB,
    n_head=2,
    n_head_kv=1,
    head_dim=64,
    n_ff=192,
)
_EXPERTS: dict[str, Any] = {"n_ff": 0, "n_experts": 16, "n_experts_used": 4, "n_ff_expert": 64}


def _like(shape: Shape, architecture: Architecture, **changed: Any) -> Shape:
    return msgspec.structs.replace(shape, **{"name": architecture, "architecture": architecture, **changed})


# Eight recurrent or parallel blocks are enough for layer subsets, few enough for thousands of tokens a second.
TINY: dict[str, Shape] = {
    "qwen35": _TINY_QWEN,
    "qwen35moe": _like(_TINY_QWEN, "qwen35moe", **_EXPERTS, n_ff_shared=64),
    "llama": _TINY_LLAMA,
    "falcon-h1": _like(
        _TINY_LLAMA,
        "falcon-h1",
        n_layers=4,
        conv_kernel=4,
        state_size=128,
        n_groups=1,
        n_state_heads=4,
        inner_size=128,
    ),
}

# A mixture large enough that its passes cost more than anything around them, and a draft that costs next to nothing:
# what a loop prints that does not check its passes (suite G). Both have the tokens of the tiny models.
RANDOM: dict[str, Shape] = {
    "random-moe": _like(
        _TINY_QWEN,
        "qwen35moe",
        name="random-moe",
        n_layers=16,
        n_embd=768,
        n_head=6,
        n_head_kv=2,
        head_dim=128,
        n_ff=0,
        n_experts=32,
        n_experts_used=4,
        n_ff_expert=320,
        n_ff_shared=2048,
        state_size=128,
        n_groups=6,
        n_state_heads=12,
        inner_size=1536,
        rope_dim=64,
        rope_sections=(11, 11, 10, 0),
    ),
    "random-draft": _like(_TINY_LLAMA, "llama", name="random-draft", n_layers=1),
}

# Attention-only Qwen models: biases on queries, keys and values; normalised heads; experts. Written only by name.
TINY_ATTENTION: dict[str, Shape] = {
    "qwen2": _like(_TINY_LLAMA, "qwen2", head_dim=32),
    "qwen3": _like(_TINY_LLAMA, "qwen3"),
    "qwen3moe": _like(_TINY_LLAMA, "qwen3moe", **_EXPERTS),
}


def _hybrid(n_state_heads: int, architecture: Architecture = "qwen35") -> dict[str, Any]:
    """What all sizes of Qwen3.5 share, without vision tower and multi-token-prediction block."""
    return {
        "architecture": architecture,
        "full_attention_interval": 4,
        "conv_kernel": 4,
        "state_size": 128,
        "n_groups": 16,
        "n_state_heads": n_state_heads,
        "inner_size": 128 * n_state_heads,
        "n_ctx_train": 262_144,
        "rope_dim": 64,
        "rope_base": 1e7,
        "rope_sections": (11, 11, 10, 0),
    }


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

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

# Attention-only Qwen models: biases on queries, keys and values; normalised heads; experts. Written only by name.
TINY_ATTENTION: dict[str, Shape] = {
    "qwen2": _like(_TINY_LLAMA, "qwen2", head_dim=32),
    "qwen3": _like(_TINY_LLAMA, "qwen3"),
    "qwen3moe": _like(_TINY_LLAMA, "qwen3moe", **_EXPERTS),
}

# Its prediction block drafts for it; written only when it is asked for by name.
TINY_MTP = _like(_TINY_QWEN, "qwen35", name="qwen35-mtp", n_mtp_blocks=1)

# Big enough (0.4 billion weights) that a target pass costs far more than a tiny draft's: what the artefact needs.
ARTEFACT_TARGET = _like(
    TINY["qwen35moe"],
    "qwen35moe",
    name="qwen35moe-large",
    n_embd=512,
    n_head=8,
    n_head_kv=2,
    n_groups=8,
    n_state_heads=16,
    inner_size=512,
    n_experts=64,
    n_experts_used=8,
    n_ff_expert=512,
    n_ff_shared=512,
)


def _qwen(
    name: str, n_layers: int, n_embd: int, n_ff: int, n_head: int, n_head_kv: int, n_state_heads: int, **more: Any
) -> Shape:
    """A Qwen3.5: what all sizes share, without vision tower and multi-token-prediction block."""
    return Shape(
        name=name,
        n_layers=n_layers,
        n_embd=n_embd,
        n_vocab=248_320,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=256,
        n_ff=n_ff,
        full_attention_interval=4,
        conv_kernel=4,
        state_size=128,
        n_groups=16,
        n_state_heads=n_state_heads,
        inner_size=128 * n_state_heads,
        n_ctx_train=262_144,
        rope_dim=64,
        rope_base=1e7,
        rope_sections=(11, 11, 10, 0),
        **{"architecture": "qwen35", **more},
    )


_MIXTURE = {"n_experts": 256, "n_experts_used": 8, "n_ff_expert": 512, "n_ff_shared": 512}
# Numbers of the public configurations of Qwen3.5 and SmolLM2 (config.json of each model).
FULL: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _qwen("qwen3.5-0.8b", 24, 1024, 3584, 8, 2, 16, tied_embeddings=True),
        _qwen("qwen3.5-2b", 24, 2048, 6144, 8, 2, 16, tied_embeddings=True),
        _qwen("qwen3.5-4b", 32, 2560, 9216, 16, 4, 32, tied_embeddings=True),
        _qwen("qwen3.5-9b", 32, 4096, 12_288, 16, 4, 32),
        _qwen("qwen3.5-27b", 64, 5120, 17_408, 24, 4, 48),
        _qwen("qwen3.5-35b-a3b", 40, 2048, 0, 16, 2, 32, architecture="qwen35moe", **_MIXTURE),
        Shape(
            name="smollm2-135m",
            architecture="llama",
            n_layers=30,
            n_embd=576,
            n_vocab=49_152,
            n_head=9,
            n_head_kv=3,
            head_dim=64,
            n_ff=1536,
            tied_embeddings=True,
            n_ctx_train=8192,
            rope_base=100_000.0,
            rms_eps=1e-5,
        ),
    )
}

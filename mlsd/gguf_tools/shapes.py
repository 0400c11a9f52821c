"""The shapes mlsd knows by name: tiny ones for tests and demonstrations, full-size ones to be written synthetically."""

from __future__ import annotations

from typing import Any

import msgspec

from mlsd.gguf_tools.shape import Shape

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

# Eight recurrent or parallel blocks are enough for layer subsets, few enough for thousands of tokens a second.
TINY: dict[str, Shape] = {
    "qwen35": _TINY_QWEN,
    "qwen35moe": msgspec.structs.replace(
        _TINY_QWEN,
        name="qwen35moe",
        architecture="qwen35moe",
        n_ff=0,
        n_experts=16,
        n_experts_used=4,
        n_ff_expert=64,
        n_ff_shared=64,
    ),
    "llama": Shape(
        name="llama",
        architecture="llama",
        n_layers=6,
        n_embd=64,
        n_vocab=TINY_VOCAB,
        n_head=2,
        n_head_kv=1,
        head_dim=64,
        n_ff=192,
    ),
    "falcon-h1": Shape(
        name="falcon-h1",
        architecture="falcon-h1",
        n_layers=4,
        n_embd=64,
        n_vocab=TINY_VOCAB,
        n_head=2,
        n_head_kv=1,
        head_dim=64,
        n_ff=192,
        conv_kernel=4,
        state_size=128,
        n_groups=1,
        n_state_heads=4,
        inner_size=128,
    ),
}

# Attention-only Qwen models: biases on queries, keys and values; normalised heads; experts. Written only by name.
TINY_ATTENTION: dict[str, Shape] = {
    "qwen2": msgspec.structs.replace(TINY["llama"], name="qwen2", architecture="qwen2", head_dim=32),
    "qwen3": msgspec.structs.replace(TINY["llama"], name="qwen3", architecture="qwen3"),
    "qwen3moe": msgspec.structs.replace(
        TINY["llama"],
        name="qwen3moe",
        architecture="qwen3moe",
        n_ff=0,
        n_experts=16,
        n_experts_used=4,
        n_ff_expert=64,
    ),
}

# Its prediction block drafts for it; written only when it is asked for by name.
TINY_MTP = msgspec.structs.replace(_TINY_QWEN, name="qwen35-mtp", n_mtp_blocks=1)

# Big enough (0.4 billion weights) that a target pass costs far more than a tiny draft's: what the artefact needs.
ARTEFACT_TARGET = msgspec.structs.replace(
    TINY["qwen35moe"],
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


def _qwen(name: str, **counts: Any) -> Shape:
    """A dense Qwen3.5: what all sizes share, without vision tower and multi-token-prediction block."""
    shared = Shape(
        name=name,
        architecture="qwen35",
        n_layers=counts["n_layers"],
        n_embd=counts["n_embd"],
        n_vocab=248_320,
        n_head=counts["n_head"],
        n_head_kv=counts["n_head_kv"],
        head_dim=256,
        full_attention_interval=4,
        conv_kernel=4,
        state_size=128,
        n_groups=16,
        n_state_heads=counts["n_state_heads"],
        inner_size=128 * counts["n_state_heads"],
        n_ctx_train=262_144,
        rope_dim=64,
        rope_base=1e7,
        rope_sections=(11, 11, 10, 0),
    )
    return msgspec.structs.replace(shared, **counts)


# Numbers of the public configurations of Qwen3.5 and SmolLM2 (config.json of each model).
FULL: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _qwen(
            "qwen3.5-0.8b",
            n_layers=24,
            n_embd=1024,
            n_ff=3584,
            n_head=8,
            n_head_kv=2,
            n_state_heads=16,
            tied_embeddings=True,
        ),
        _qwen(
            "qwen3.5-2b",
            n_layers=24,
            n_embd=2048,
            n_ff=6144,
            n_head=8,
            n_head_kv=2,
            n_state_heads=16,
            tied_embeddings=True,
        ),
        _qwen(
            "qwen3.5-4b",
            n_layers=32,
            n_embd=2560,
            n_ff=9216,
            n_head=16,
            n_head_kv=4,
            n_state_heads=32,
            tied_embeddings=True,
        ),
        _qwen("qwen3.5-9b", n_layers=32, n_embd=4096, n_ff=12_288, n_head=16, n_head_kv=4, n_state_heads=32),
        _qwen("qwen3.5-27b", n_layers=64, n_embd=5120, n_ff=17_408, n_head=24, n_head_kv=4, n_state_heads=48),
        _qwen(
            "qwen3.5-35b-a3b",
            architecture="qwen35moe",
            n_layers=40,
            n_embd=2048,
            n_head=16,
            n_head_kv=2,
            n_state_heads=32,
            n_experts=256,
            n_experts_used=8,
            n_ff_expert=512,
            n_ff_shared=512,
        ),
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

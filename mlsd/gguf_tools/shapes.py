"""The shapes mlsd knows by name: tiny ones for tests and demonstrations."""

from __future__ import annotations

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

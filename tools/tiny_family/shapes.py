"""The shapes of the family: transformers' own Qwen3.5 classes at sizes one CPU core can train in an hour."""

from __future__ import annotations

from functools import partial
from typing import Any

from tokens import VOCAB_SIZE

# Head width 64, a quarter rotated: 16 dimensions or 8 angles, split 3 + 3 + 2 as Qwen splits 11 + 11 + 10.
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]}
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "head_dim": 64,
    "num_key_value_heads": 1,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": _ROPE,
    "eos_token_id": 0,
    "initializer_range": 0.02,
}
_TARGET = {"hidden_size": 160, "num_hidden_layers": 8, "num_attention_heads": 3}
_PERIOD = ["linear_attention"] * 3 + ["full_attention"]

SHAPES: dict[str, dict[str, Any]] = {
    "tiny-dense": {**_COMMON, **_TARGET, "intermediate_size": 416, "layer_types": _PERIOD * 2},
    "tiny-moe": {
        **_COMMON,
        **_TARGET,
        "layer_types": _PERIOD * 2,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 96,
    },
    "tiny-draft": {
        **_COMMON,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 320,
        "layer_types": ["linear_attention", "full_attention"],
    },
}


def new_model(name: str) -> Any:
    """A freshly initialised transformers model of the family (`torch.manual_seed` decides the weights)."""
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig, modeling_qwen3_5
    from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, modeling_qwen3_5_moe

    # Chunks of 32 instead of 64 positions: the same sums, about a tenth faster for 32-wide heads on a CPU.
    for module in (modeling_qwen3_5, modeling_qwen3_5_moe):
        rule = module.torch_chunk_gated_delta_rule
        if not isinstance(rule, partial):
            module.torch_chunk_gated_delta_rule = partial(rule, chunk_size=32)  # type: ignore[assignment]
    shape = SHAPES[name]
    if "num_experts" in shape:
        return Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**shape))
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape))

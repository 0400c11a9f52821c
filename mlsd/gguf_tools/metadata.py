"""The metadata that makes a file of tensors a model: what llama.cpp reads, and what marks a model as synthetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlsd.gguf_tools.shape import Shape

if TYPE_CHECKING:
    import gguf

SYNTHETIC = "mlsd.synthetic"


def add_keys(
    writer: gguf.GGUFWriter, architecture: str, keys: dict[str, Any], *, name: str, origin: dict[str, Any]
) -> None:
    """Write the architecture's keys, the name, and `origin` under ``mlsd.`` next to the mark `SYNTHETIC`."""
    writer.add_name(name)
    writer.add_description("Random weights written by mlsd. Its text has no meaning.")
    writer.add_bool(SYNTHETIC, True)
    for key, value in origin.items():
        _add(writer, f"mlsd.{key}", value)
    for key, value in keys.items():
        _add(writer, f"{architecture}.{key}", value)


def architecture_keys(shape: Shape) -> dict[str, Any]:
    """The architecture's own keys, without their prefix."""
    keys: dict[str, Any] = {
        "vocab_size": shape.n_vocab,
        "block_count": shape.n_layers + shape.n_mtp_blocks,
        "context_length": shape.n_ctx_train,
        "embedding_length": shape.n_embd,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": float(shape.rms_eps),
        "rope.dimension_count": shape.rope_dim or shape.head_dim,
        "rope.freq_base": float(shape.rope_base),
    }
    if shape.n_ff:
        keys["feed_forward_length"] = shape.n_ff
    if shape.rope_sections:
        keys["rope.dimension_sections"] = list(shape.rope_sections)
    if shape.conv_kernel:
        keys["ssm.conv_kernel"] = shape.conv_kernel
        keys["ssm.state_size"] = shape.state_size
        keys["ssm.group_count"] = shape.n_groups
        keys["ssm.time_step_rank"] = shape.n_state_heads
        keys["ssm.inner_size"] = shape.inner_size
    if shape.full_attention_interval:
        keys["full_attention_interval"] = shape.full_attention_interval
    if shape.n_mtp_blocks:
        keys["nextn_predict_layers"] = shape.n_mtp_blocks
    if shape.n_experts:
        keys["expert_count"] = shape.n_experts
        keys["expert_used_count"] = shape.n_experts_used
        keys["expert_feed_forward_length"] = shape.n_ff_expert
        keys["expert_shared_feed_forward_length"] = shape.n_ff_shared
    return keys


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Whole numbers have 32 bits and no sign, as llama.cpp expects them."""
    import gguf

    types = gguf.GGUFValueType
    writer.add_key_value(key, value, types.UINT32 if type(value) is int else types.get_type(value))

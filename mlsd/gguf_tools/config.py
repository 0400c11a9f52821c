"""A model's shape from its ``config.json``, the file that model hubs keep beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import InputError
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.vocabulary import MIN_VOCAB

_FAMILIES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen3_5": "qwen35",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
    "falcon_h1": "falcon-h1",
}


def shape_from_config(path: Path) -> Shape:
    """The shape that a ``config.json`` describes; vision towers and prediction blocks are left out.

    Raises: InputError for a file that cannot be read, another family, or a missing number.
    """
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", hint="Give a model's config.json.") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not a configuration: {error}.", hint="Give a model's config.json.") from error
    family = str(config.get("model_type"))
    if family not in _FAMILIES:
        raise InputError(
            f"{path} describes a model of type {family}, which mlsd has no tensor list for.",
            hint=f"Types that work: {', '.join(_FAMILIES)}; or give a GGUF of the model, whatever its type.",
        )
    # Models that also see keep the language model's numbers in a part of their own.
    text: dict[str, Any] = {**config, **config.get("text_config", {})}
    try:
        return _shape(path.parent.name or family, _FAMILIES[family], text)
    except KeyError as error:
        raise InputError(f"{path} does not say {error.args[0]}.", hint="Is it the whole config.json?") from error


def _shape(name: str, architecture: str, text: dict[str, Any]) -> Shape:
    n_embd, n_head = int(text["hidden_size"]), int(text["num_attention_heads"])
    head_dim = int(text.get("head_dim") or n_embd // n_head)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    parts: dict[str, Any] = {
        "name": name,
        "architecture": architecture,
        "n_layers": int(text["num_hidden_layers"]),
        "n_embd": n_embd,
        "n_vocab": max(int(text["vocab_size"]), MIN_VOCAB),
        "n_head": n_head,
        "n_head_kv": int(text.get("num_key_value_heads") or n_head),
        "head_dim": head_dim,
        "n_ff": int(text.get("intermediate_size") or 0),
        "tied_embeddings": bool(text.get("tie_word_embeddings", False)),
        "n_ctx_train": int(text.get("max_position_embeddings", 4096)),
        "rope_base": float(text.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
        "rms_eps": float(text.get("rms_norm_eps", 1e-6)),
    }
    if architecture == "falcon-h1":
        parts |= _mamba(text)
    elif architecture.startswith("qwen35"):
        parts |= _delta_net(text, head_dim, rope)
    if architecture in ("qwen35moe", "qwen3moe"):
        parts |= {
            "n_ff": 0,
            "n_experts": int(text["num_experts"]),
            "n_experts_used": int(text["num_experts_per_tok"]),
            "n_ff_expert": int(text["moe_intermediate_size"]),
            "n_ff_shared": int(text.get("shared_expert_intermediate_size", 0)),
        }
    return msgspec.convert(parts, Shape)


def _mamba(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "conv_kernel": int(text["mamba_d_conv"]),
        "state_size": int(text["mamba_d_state"]),
        "n_groups": int(text["mamba_n_groups"]),
        "n_state_heads": int(text["mamba_n_heads"]),
        "inner_size": int(text["mamba_d_ssm"]),
    }


def _delta_net(text: dict[str, Any], head_dim: int, rope: dict[str, Any]) -> dict[str, Any]:
    heads, width = int(text["linear_num_value_heads"]), int(text["linear_value_head_dim"])
    rotated = float(text.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 0.25)
    sections = rope.get("mrope_section") or [11, 11, 10]
    return {
        "full_attention_interval": int(text.get("full_attention_interval", 4)),
        "conv_kernel": int(text["linear_conv_kernel_dim"]),
        "state_size": int(text["linear_key_head_dim"]),
        "n_groups": int(text["linear_num_key_heads"]),
        "n_state_heads": heads,
        "inner_size": heads * width,
        "rope_dim": int(head_dim * rotated),
        "rope_sections": (*(int(n) for n in sections), 0)[:4],
    }

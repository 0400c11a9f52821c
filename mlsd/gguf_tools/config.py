"""A model's shape from its ``config.json``, the file that model hubs keep beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from mlsd.errors import InputError
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.vocabulary import MIN_VOCAB
from mlsd.outside import parse, read_given
from mlsd.records import Record

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
    """The shape that a ``config.json`` describes, without vision tower and prediction blocks. Raises: InputError."""
    config = parse(read_given(path, InputError, "Give a model's config.json."), _Config, str(path))
    family = str(config.model_type)
    if family not in _FAMILIES:
        raise InputError(
            f"{path} describes a model of type {family}, which mlsd has no tensor list for.",
            hint=f"Types that work: {', '.join(_FAMILIES)}; or give a GGUF of the model, whatever its type.",
        )
    # Models that also see keep the language model's numbers in a part of their own.
    text = config
    if config.text_config is not None:
        inner = config.text_config
        given = {name: value for name in inner.__struct_fields__ if (value := getattr(inner, name)) is not None}
        text = msgspec.structs.replace(config, **given)
    try:
        return _shape(path.parent.name or family, _FAMILIES[family], text)
    except _Missing as missing:
        raise InputError(f"{path} does not say {missing}.", hint="Is it the whole config.json?") from missing


class _Missing(Exception):
    """A number that a shape needs."""


Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Real = Annotated[float, msgspec.Meta(ge=0, le=1e30)]


class _Rope(Record, frozen=True, kw_only=True):
    """How positions turn."""

    rope_theta: Real | None = None
    partial_rotary_factor: Real | None = None
    mrope_section: tuple[Size, ...] | None = None


class _Config(Record, frozen=True, kw_only=True):
    """What is read of a ``config.json``; None where it does not say."""

    model_type: str | None = None
    text_config: _Config | None = None
    hidden_size: Size | None = None
    num_attention_heads: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    num_hidden_layers: Size | None = None
    vocab_size: Size | None = None
    intermediate_size: Size | None = None
    tie_word_embeddings: bool | None = None
    max_position_embeddings: Size | None = None
    rope_theta: Real | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None
    rms_norm_eps: Real | None = None
    partial_rotary_factor: Real | None = None
    num_experts: Size | None = None
    num_experts_per_tok: Size | None = None
    moe_intermediate_size: Size | None = None
    shared_expert_intermediate_size: Size | None = None
    mamba_d_conv: Size | None = None
    mamba_d_state: Size | None = None
    mamba_n_groups: Size | None = None
    mamba_n_heads: Size | None = None
    mamba_d_ssm: Size | None = None
    full_attention_interval: Size | None = None
    linear_conv_kernel_dim: Size | None = None
    linear_key_head_dim: Size | None = None
    linear_num_key_heads: Size | None = None
    linear_num_value_heads: Size | None = None
    linear_value_head_dim: Size | None = None

    def must(self, name: str) -> int:
        """A size that has no default. Raises: _Missing."""
        value = getattr(self, name)
        if value is None:
            raise _Missing(name)
        return int(value)


def _shape(name: str, architecture: str, text: _Config) -> Shape:
    n_embd, n_head = text.must("hidden_size"), text.must("num_attention_heads")
    head_dim = text.head_dim or n_embd // max(1, n_head)
    rope = text.rope_parameters or text.rope_scaling or _Rope()
    parts: dict[str, Any] = {
        "name": name,
        "architecture": architecture,
        "n_layers": text.must("num_hidden_layers"),
        "n_embd": n_embd,
        "n_vocab": max(text.must("vocab_size"), MIN_VOCAB),
        "n_head": n_head,
        "n_head_kv": text.num_key_value_heads or n_head,
        "head_dim": head_dim,
        "n_ff": text.intermediate_size or 0,
        "tied_embeddings": bool(text.tie_word_embeddings),
        "n_ctx_train": text.max_position_embeddings or 4096,
        "rope_base": text.rope_theta or rope.rope_theta or 10_000.0,
        "rms_eps": 1e-6 if text.rms_norm_eps is None else text.rms_norm_eps,
    }
    if architecture == "falcon-h1":
        parts |= _mamba(text)
    elif architecture.startswith("qwen35"):
        parts |= _delta_net(text, head_dim, rope)
    if architecture in ("qwen35moe", "qwen3moe"):
        parts |= {
            "n_ff": 0,
            "n_experts": text.must("num_experts"),
            "n_experts_used": text.must("num_experts_per_tok"),
            "n_ff_expert": text.must("moe_intermediate_size"),
            "n_ff_shared": text.shared_expert_intermediate_size or 0,
        }
    return msgspec.convert(parts, Shape)


def _mamba(text: _Config) -> dict[str, Any]:
    return {
        "conv_kernel": text.must("mamba_d_conv"),
        "state_size": text.must("mamba_d_state"),
        "n_groups": text.must("mamba_n_groups"),
        "n_state_heads": text.must("mamba_n_heads"),
        "inner_size": text.must("mamba_d_ssm"),
    }


def _delta_net(text: _Config, head_dim: int, rope: _Rope) -> dict[str, Any]:
    heads, width = text.must("linear_num_value_heads"), text.must("linear_value_head_dim")
    rotated = text.partial_rotary_factor or rope.partial_rotary_factor or 0.25
    return {
        "full_attention_interval": 4 if text.full_attention_interval is None else text.full_attention_interval,
        "conv_kernel": text.must("linear_conv_kernel_dim"),
        "state_size": text.must("linear_key_head_dim"),
        "n_groups": text.must("linear_num_key_heads"),
        "n_state_heads": heads,
        "inner_size": heads * width,
        "rope_dim": int(head_dim * rotated),
        "rope_sections": (*(rope.mrope_section or (11, 11, 10)), 0)[:4],
    }

"""An existing GGUF as the shape of a synthetic one: the same tensors and metadata, whatever the architecture."""

from __future__ import annotations

from mlsd.gguf_tools.shape import Kind, TensorSpec

_CONV_PARTS = ("ssm_conv1d", "shortconv")
_MATRIX_DIMS = 2


def spec_of(name: str, dims: tuple[int, ...]) -> TensorSpec:
    """What a tensor of a known name is for; anything unknown with two dimensions counts as a matrix."""
    return TensorSpec(name=name, dims=dims, kind=_kind_of(name, dims))


def _kind_of(name: str, dims: tuple[int, ...]) -> Kind:
    parts = name.split(".")
    part = parts[2] if parts[0] == "blk" and len(parts) > 2 else parts[0]
    if name == "token_embd.weight":
        return "embedding"
    if name == "output.weight":
        return "head"
    if part.endswith("_exps"):
        return "experts"
    if part == "ffn_gate_inp":
        return "router"
    if part == "ffn_gate_inp_shexp":
        return "shared_gate"
    if part in _CONV_PARTS:
        return "conv"
    if len(dims) < _MATRIX_DIMS or 1 in dims or "norm" in part:
        return "norm"
    return "matrix"

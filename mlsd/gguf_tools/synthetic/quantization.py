"""Which type each tensor of a synthetic model is stored in: one type, one of llama.cpp's mixtures, or a file's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlsd.errors import InputError, choose
from mlsd.gguf_tools.read import ModelWeight, weigh
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.tensor import QUANTIZED_KINDS, Tensor, gguf_constants

if TYPE_CHECKING:
    import gguf

SAME = "same"  # the types of the file that gives the shape
MIXTURES = {"Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K"}
SYNTHETIC_TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "Q2_K", "Q4_K", "Q5_K", "Q6_K"),
)
# Rows that a K-type's blocks of 256 do not divide: what llama.cpp's quantizer takes instead.
_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_MORE_BITS_PARTS = ("attn_v", "attn_qkv", "ffn_down", "ffn_down_exps", "ffn_down_shexp")


def stored_shape(shape: Shape, quant: str) -> tuple[list[Tensor], ModelWeight]:
    """A shape's tensors as `quant` stores them, and what they weigh. Raises: InputError."""
    stored = quantized(shape.tensors, quant, n_layers=shape.n_layers)
    return stored, weigh(stored, n_trunk=shape.n_layers, n_experts=shape.n_experts, n_experts_used=shape.n_experts_used)


def quantized(specs: Sequence[Tensor], quant: str, *, n_layers: int) -> list[Tensor]:
    """The tensors as `quant` stores them; small ones stay F32. Raises: InputError."""
    name = quant.upper()
    if name in MIXTURES:
        tied = all(spec.kind != "head" for spec in specs)
        return [_mixed(spec, MIXTURES[name], n_layers, tied=tied) for spec in specs]
    if name not in SYNTHETIC_TYPES:
        raise InputError(
            f"mlsd cannot make random weights of type {quant}.",
            hint=choose(quant, (*SYNTHETIC_TYPES, *MIXTURES), f", or {SAME} for a GGUF's own types"),
        )
    return [spec.stored_as(_type(name)) for spec in specs]


def _type(name: str) -> gguf.GGMLQuantizationType:
    return gguf_constants().GGMLQuantizationType[name]


def _mixed(spec: Tensor, base: str, n_layers: int, *, tied: bool) -> Tensor:
    """llama.cpp's ``_K_M`` rule: the head and half of the value and down projections are Q6_K (src/llama-quant.cpp)."""
    is_head = spec.kind == "head" or (tied and spec.kind == "embedding")
    has_more = spec.block is not None and spec.part in _MORE_BITS_PARTS and more_bits(spec.block, n_layers)
    kind = "Q6_K" if is_head or has_more else base
    block_size, _ = gguf_constants().GGML_QUANT_SIZES[_type(kind)]
    if spec.kind in QUANTIZED_KINDS and spec.dims[0] % block_size:
        kind = _FALLBACK[kind]
    return spec.stored_as(_type(kind))


def more_bits(layer: int, n_layers: int) -> bool:
    """The first and last eighth of the blocks, and every third between them (use_more_bits in llama-quant.cpp)."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2

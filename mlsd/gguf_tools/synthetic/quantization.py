"""Which type each tensor of a synthetic model is stored in: one type, one of llama.cpp's mixtures, or a file's own."""

from __future__ import annotations

from collections.abc import Sequence

import gguf

from mlsd.errors import InputError
from mlsd.gguf_tools.synthetic.blocks import SYNTHETIC_TYPES
from mlsd.gguf_tools.tensor import QUANTIZED_KINDS, Tensor

_Type = gguf.GGMLQuantizationType

SAME = "same"  # the types of the file that gives the shape
MIXTURES = {"Q4_K_M": _Type.Q4_K, "Q5_K_M": _Type.Q5_K}
# Rows that a K-type's blocks of 256 do not divide: what llama.cpp's quantizer takes instead.
_FALLBACK = {_Type.Q4_K: _Type.Q5_0, _Type.Q5_K: _Type.Q5_1, _Type.Q6_K: _Type.Q8_0}
_MORE_BITS_PARTS = ("attn_v", "attn_qkv", "ffn_down", "ffn_down_exps", "ffn_down_shexp")


def quantized(specs: Sequence[Tensor], quant: str, *, n_layers: int) -> list[Tensor]:
    """The tensors as `quant` stores them; small ones stay F32. Raises: InputError."""
    name = quant.upper()
    if name in MIXTURES:
        tied = all(spec.kind != "head" for spec in specs)
        return [_mixed(spec, MIXTURES[name], n_layers, tied=tied) for spec in specs]
    if name not in SYNTHETIC_TYPES:
        raise InputError(
            f"mlsd cannot make random weights of type {quant}.",
            hint=f"The choices are {', '.join((*SYNTHETIC_TYPES, *MIXTURES))}, and {SAME} for a GGUF's own types.",
        )
    return [spec.stored_as(_Type[name]) for spec in specs]


def _mixed(spec: Tensor, base: gguf.GGMLQuantizationType, n_layers: int, *, tied: bool) -> Tensor:
    """llama.cpp's ``_K_M`` rule: the head and half of the value and down projections are Q6_K (src/llama-quant.cpp)."""
    is_head = spec.kind == "head" or (tied and spec.kind == "embedding")
    has_more = spec.block is not None and spec.part in _MORE_BITS_PARTS and more_bits(spec.block, n_layers)
    kind = _Type.Q6_K if is_head or has_more else base
    block_size, _ = gguf.GGML_QUANT_SIZES[kind]
    if spec.kind in QUANTIZED_KINDS and spec.dims[0] % block_size:
        kind = _FALLBACK[kind]
    return spec.stored_as(kind)


def more_bits(layer: int, n_layers: int) -> bool:
    """The first and last eighth of the blocks, and every third between them (use_more_bits in llama-quant.cpp)."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2

"""How a tensor is stored: its type, its bytes, and which tensors keep full precision when the rest is quantized."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from mlsd.errors import InputError
from mlsd.gguf_tools.shape import Kind, TensorSpec
from mlsd.records import Record

if TYPE_CHECKING:  # it brings numpy and half a second; a name that is wrong is answered without
    import gguf

# The large matrices. The rest stays F32, as llama.cpp's own quantizer leaves it.
QUANTIZED_KINDS: frozenset[Kind] = frozenset({"embedding", "head", "matrix", "experts"})


class Stored(Record, frozen=True, kw_only=True):
    """One tensor as it lies in a file: `dims` in GGUF order, a row's length first."""

    name: str
    dims: tuple[int, ...]
    type: gguf.GGMLQuantizationType

    @property
    def n_weights(self) -> int:
        return prod(self.dims)

    @property
    def n_bytes(self) -> int:
        import gguf

        block, size = gguf.GGML_QUANT_SIZES[self.type]
        return self.n_weights // int(block) * int(size)


def stored(
    spec: TensorSpec, kind: gguf.GGMLQuantizationType, *, quantized: frozenset[Kind] = QUANTIZED_KINDS
) -> Stored:
    """The tensor as `kind` if its own kind is `quantized`, else as F32. Raises: InputError for rows it cannot fill."""
    import gguf

    if spec.kind not in quantized:
        return Stored(name=spec.name, dims=spec.dims, type=gguf.GGMLQuantizationType.F32)
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if spec.dims[0] % block:
        raise InputError(
            f"{kind.name} packs {block} weights a block, which does not divide the rows of {spec.name} "
            f"({spec.dims[0]} weights).",
            hint="Choose a type with smaller blocks (Q8_0: 32 weights) or F16.",
        )
    return Stored(name=spec.name, dims=spec.dims, type=kind)

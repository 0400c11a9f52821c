"""One tensor of a GGUF file: its name, its shape, what it is for, and how it is stored."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from mlsd.errors import InputError
from mlsd.records import Record

if TYPE_CHECKING:  # it brings numpy and half a second; advice is given without
    import gguf

# What a tensor is for. It decides how random weights are scaled, which tensors keep full precision when the rest is
# quantized, and what is read for one token.
Kind = Literal[
    "embedding",
    "head",
    "norm",
    "matrix",
    "experts",
    "router",
    "shared_gate",
    "bias",
    "conv",
    "conv_bias",
    "decay",
    "skip",
    "time_step",
]
# The large matrices. The rest stays F32, as llama.cpp's own quantizer leaves it.
QUANTIZED_KINDS: frozenset[Kind] = frozenset({"embedding", "head", "matrix", "experts"})
_BY_PART: dict[str, Kind] = {
    "token_embd": "embedding",
    "markov_w1": "embedding",
    "output": "head",
    "ffn_gate_inp": "router",
    "ffn_gate_inp_shexp": "shared_gate",
    "ssm_a": "decay",
    "ssm_d": "skip",
}


@functools.cache
def gguf_constants() -> Any:
    """`gguf.constants` alone: the package around it loads its readers, and they numpy."""
    name = "gguf.constants"
    if name not in sys.modules:
        package = find_spec("gguf")
        assert package is not None and package.origin is not None
        spec = spec_from_file_location(name, Path(package.origin).parent / "constants.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Tensor(Record, frozen=True, kw_only=True):
    """A tensor: `dims` in GGUF order, the contiguous dimension (a row's length) first."""

    name: str
    dims: tuple[int, ...]
    type: gguf.GGMLQuantizationType = None  # None: not chosen yet

    @property
    def n_weights(self) -> int:
        return prod(self.dims)

    @property
    def n_bytes(self) -> int:
        block, size = gguf_constants().GGML_QUANT_SIZES[self.type]
        return self.n_weights // int(block) * int(size)

    @property
    def block(self) -> int | None:
        """The block it belongs to: ``blk.3.attn_q.weight`` -> 3; None for the tensors around the blocks."""
        parts = self.name.split(".")
        return int(parts[1]) if len(parts) > 2 and parts[0] == "blk" and parts[1].isdigit() else None

    @property
    def part(self) -> str:
        """The name inside its block: ``blk.3.attn_q.weight`` -> ``attn_q``."""
        names = self.name.split(".")
        return names[2] if names[0] == "blk" and len(names) > 2 else names[0]

    @property
    def kind(self) -> Kind:
        """What it is for, by its name; anything unknown with two real dimensions is a matrix."""
        part, is_bias = self.part, self.name.endswith(".bias")
        if part.startswith("ssm_conv1d") or self.name.endswith(("conv.weight", "conv_base")):
            return "conv_bias" if is_bias else "conv"
        if is_bias:
            return "time_step" if part == "ssm_dt" else "bias"
        if "norm" in self.name or part.endswith("_ln"):
            return "norm"
        if part.endswith("_exps"):
            return "experts"
        # What is left with one axis (sinks, and the interpolations of RWKV) is added or mixed in, as a bias is.
        return _BY_PART.get(part, "bias" if len(self.dims) < 2 or 1 in self.dims else "matrix")

    def stored_as(self, kind: gguf.GGMLQuantizationType, *, quantized: frozenset[Kind] = QUANTIZED_KINDS) -> Tensor:
        """As `kind` if its own kind is `quantized`, else as F32. Raises: InputError for rows it cannot fill."""
        if self.kind not in quantized:
            return msgspec.structs.replace(self, type=gguf_constants().GGMLQuantizationType.F32)
        block, _ = gguf_constants().GGML_QUANT_SIZES[kind]
        if self.dims[0] % block:
            raise InputError(
                f"{kind.name} packs {block} weights a block, which does not divide the rows of {self.name} "
                f"({self.dims[0]} weights).",
                hint="Choose a type with smaller blocks (Q8_0: 32 weights) or F16.",
            )
        return msgspec.structs.replace(self, type=kind)


def read_tensors(lines: str, widths: Mapping[str, int] = MappingProxyType({}), prefix: str = "") -> Iterator[Tensor]:
    """Tensors as tables list them: names and widths, a row's length first, as numbers or by their names in `widths`."""
    for line in lines.split(","):
        name, *dims = line.split()
        sizes = (widths[width] if width in widths else int(width) for width in dims)
        yield Tensor(name=f"{prefix}{name}", dims=tuple(sizes))

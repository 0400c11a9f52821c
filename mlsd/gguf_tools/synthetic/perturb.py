"""A perturbed copy of a model: the same weights with a little noise, so a draft with any acceptance rate can be made.

Every block's scale is multiplied by 1 + noise * N(0, 1), which multiplies all its weights: the noise is as large as
asked for in any type, where noise below a quantization step would be lost or blown up by quantizing again.
"""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.source import Bytes, Floats, Source
from mlsd.gguf_tools.stream import write_gguf
from mlsd.gguf_tools.synthetic.blocks import LAYOUTS
from mlsd.gguf_tools.synthetic.write import generator
from mlsd.gguf_tools.tensor import Tensor
from mlsd.hashes import OnBytes

_Type = gguf.GGMLQuantizationType

_FLOATS = (_Type.F32, _Type.F16, _Type.BF16)
# Where the half-precision scales (and offsets, right behind them) lie in a block: first byte, count.
_SCALES = {kind: (layout.scale, 1 if layout.offset is None else 2) for kind, layout in LAYOUTS.items()}
_SCALES |= {_Type.IQ4_XS: (0, 1), _Type.Q3_K: (108, 1)}


def perturb(source: Path, target: Path, *, noise: float, seed: int = 0, on_bytes: OnBytes | None = None) -> None:
    """Write a copy of the model `source` whose weights differ by the fraction `noise` (standard deviation).

    Repeatable byte for byte from `seed`. Raises: InputError for a noise below 0 or over 1, or a file written over
    itself; ModelFileError for a tensor type whose scales cannot be changed.
    """
    if not 0 <= noise <= 1:
        raise InputError(f"A noise of {noise:g} is not a fraction of a weight.", hint="Give a number from 0 to 1.")
    model = Source(source)
    model.require_whole()
    tensors = model.tensors
    for tensor in tensors:
        if tensor.type not in _SCALES and tensor.type not in _FLOATS:
            raise ModelFileError(
                f"{tensor.name} of {source} is stored as {tensor.type.name}, whose scales mlsd cannot change.",
                hint=f"Types that work: F32, F16, BF16, {', '.join(kind.name for kind in _SCALES)}.",
            )

    def describe(writer: gguf.GGUFWriter) -> None:
        model.copy_metadata(writer, skip=("general.name", "mlsd.noise", "mlsd.noise_seed"))
        writer.add_name(f"{model.text('general.name', source.stem, prefixed=False)}, noise {noise:g}")
        writer.add_float32("mlsd.noise", noise)
        writer.add_uint32("mlsd.noise_seed", seed)

    def data(tensor: Tensor) -> Iterator[Bytes]:
        rng = generator(seed, tensor.name, "noise")
        return (noisy(piece, tensor.type, noise, rng) for piece in model.pieces(tensor))

    write_gguf(target, model.architecture, tensors, describe, data, made_from=source, on_bytes=on_bytes)


def noisy(data: Bytes, kind: gguf.GGMLQuantizationType, noise: float, rng: np.random.Generator) -> Bytes:
    """A copy of whole blocks of type `kind` in which each block, or each weight of a float type, is scaled."""
    if kind in _FLOATS:
        weights = gguf.quants.dequantize(data, kind)
        floats: Bytes = gguf.quants.quantize(weights * _factors(weights.shape, noise, rng), kind).view(np.uint8)
        return floats
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    first, count = _SCALES[kind]
    blocks = data.reshape(-1, block_bytes).copy()
    scales = blocks[:, first : first + 2 * count].copy().view(np.float16).astype(np.float32)
    scales *= _factors((len(blocks), 1), noise, rng)
    blocks[:, first : first + 2 * count] = scales.astype(np.float16).view(np.uint8)
    return blocks.reshape(-1)


def _factors(shape: tuple[int, ...], noise: float, rng: np.random.Generator) -> Floats:
    factors = rng.standard_normal(shape, dtype=np.float32)
    factors *= np.float32(noise)
    factors += np.float32(1.0)
    return factors

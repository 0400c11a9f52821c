"""Valid random quantized blocks, made as fast as a disk takes them.

A tensor is a pool of some megabytes again and again, from its own starting place; each lap turns the signs of random
blocks. No quantizer runs: integers are random bits, and scales are written to give the spread.
"""

from collections.abc import Iterator

import gguf
import numpy as np

from mlsd.errors import InputError
from mlsd.gguf_tools.source import Bytes, Floats
from mlsd.gguf_tools.synthetic.quantization import SYNTHETIC_TYPES
from mlsd.gguf_tools.synthetic.write import generator
from mlsd.records import Record

_Type = gguf.GGMLQuantizationType
_FLOAT_BYTES = {_Type.F32: 4, _Type.F16: 2, _Type.BF16: 2}
_FLOAT_GROUP = 64  # weights of a float type that change sign together
_POOL_BYTES = 1 << 23
_SAMPLE_BLOCKS = 2048


class _BlockLayout(Record, frozen=True, kw_only=True):
    """Where a block keeps what is not a random integer. Layouts of ggml-common.h."""

    scale: int  # byte of the half-precision scale
    offset: int | None = None  # byte of the half-precision offset or its scale
    offset_ratio: float = 0.0  # offset / scale that centres the weights on zero
    constants: tuple[tuple[int, bytes], ...] = ()  # inner scales, all the same


# Twelve bytes that hold eight 6-bit scales and eight 6-bit offsets, all equal to 8.
_INNER_6BIT = bytes([8] * 8 + [0x88] * 4)
LAYOUTS: dict[gguf.GGMLQuantizationType, _BlockLayout] = {
    _Type.Q4_0: _BlockLayout(scale=0),
    _Type.Q4_1: _BlockLayout(scale=0, offset=2, offset_ratio=-7.5),
    _Type.Q5_0: _BlockLayout(scale=0),
    _Type.Q5_1: _BlockLayout(scale=0, offset=2, offset_ratio=-15.5),
    _Type.Q8_0: _BlockLayout(scale=0),
    _Type.IQ4_NL: _BlockLayout(scale=0),
    _Type.Q2_K: _BlockLayout(scale=80, offset=82, offset_ratio=1.5, constants=((0, bytes([0x88] * 16)),)),
    _Type.Q4_K: _BlockLayout(scale=0, offset=2, offset_ratio=7.5, constants=((4, _INNER_6BIT),)),
    _Type.Q5_K: _BlockLayout(scale=0, offset=2, offset_ratio=15.5, constants=((4, _INNER_6BIT),)),
    _Type.Q6_K: _BlockLayout(scale=208, constants=((192, bytes([8] * 16)),)),
}


class Pool:
    """Random blocks of one type whose weights have the standard deviation `std` and mean about zero."""

    def __init__(self, kind: gguf.GGMLQuantizationType, std: float, seed: int) -> None:
        """Fill the pool. Raises: InputError for a type whose blocks mlsd cannot make."""
        if kind not in LAYOUTS and kind not in _FLOAT_BYTES:
            raise InputError(
                f"mlsd cannot make random blocks of {kind.name}.", hint=f"It can of {', '.join(SYNTHETIC_TYPES)}."
            )
        self.kind = kind
        rng = generator(seed, f"{kind.name} {std:.9g}", "pool")
        self.blocks, self._sign_bytes = _floats(kind, std, rng) if kind in _FLOAT_BYTES else _quantized(kind, std, rng)

    def pieces(self, n_bytes: int, rng: np.random.Generator) -> Iterator[Bytes]:
        """`n_bytes` of blocks in pieces; each is overwritten when the next is asked for."""
        n_blocks, block_bytes = self.blocks.shape
        at, lap = int(rng.integers(n_blocks)) * block_bytes, self.blocks
        # One buffer for all laps: fresh memory would cost more than the copy.
        buffer = np.empty_like(self.blocks)
        while n_bytes:
            piece = lap.reshape(-1)[at : at + n_bytes]
            yield piece
            n_bytes -= len(piece)
            at = 0
            if n_bytes:
                lap = buffer
                np.copyto(lap, self.blocks)
                lap[:, self._sign_bytes] ^= rng.integers(0, 2, size=(n_blocks, 1), dtype=np.uint8) << 7

    def equal_first(self) -> tuple[Bytes, float]:
        """Many different blocks that all begin with the same large weight, and that weight."""
        sample = self.blocks[: 1 << 15].copy()
        if self.kind in LAYOUTS:
            # One scale for all; then the blocks whose first integer is the largest agree.
            layout = LAYOUTS[self.kind]
            scales = np.abs(sample[:, layout.scale : layout.scale + 2].copy().view(np.float16).astype(np.float32))
            _write_scales(sample, layout, np.full(len(sample), np.median(scales), dtype=np.float32))
        else:
            largest = int(dequantized(sample, self.kind)[:, 0].argmax())
            sample[:, : _FLOAT_BYTES[self.kind]] = sample[largest, : _FLOAT_BYTES[self.kind]]
        first = dequantized(sample, self.kind)[:, 0]
        return sample[first == first.max()], float(first.max())


def dequantized(blocks: Bytes, kind: gguf.GGMLQuantizationType) -> Floats:
    """The weights of whole blocks, a row for each."""
    weights: Floats = gguf.quants.dequantize(blocks.reshape(-1), kind).reshape(len(blocks), -1)
    return weights


def _quantized(
    kind: gguf.GGMLQuantizationType, std: float, rng: np.random.Generator
) -> tuple[Bytes, slice | list[int]]:
    """Blocks, and the bytes that hold the signs of their scales."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    layout = LAYOUTS[kind]
    n_blocks = _prime_below(_POOL_BYTES // block_bytes)
    blocks = np.frombuffer(rng.bytes(n_blocks * block_bytes), dtype=np.uint8).reshape(n_blocks, block_bytes).copy()
    if kind is _Type.Q8_0:
        # A quantizer never stores -128.
        integers = blocks[:, 2:]
        integers[integers == 0x80] = 0x81
    for at, constant in layout.constants:
        blocks[:, at : at + len(constant)] = np.frombuffer(constant, dtype=np.uint8)
    # Scales differ from block to block as in a real model: where they are looked up in a table, one scale for all would
    # always be in the nearest cache (4 % of a pass over SmolLM2).
    scales = rng.uniform(0.5, 1.5, n_blocks).astype(np.float32)
    _write_scales(blocks, layout, scales)
    _write_scales(blocks, layout, scales * np.float32(std / dequantized(blocks[:_SAMPLE_BLOCKS], kind).std()))
    signs = [layout.scale + 1] + ([layout.offset + 1] if layout.offset is not None else [])
    # Integers of some types lie off centre (-8 to 7); blocks of both signs bring the mean to zero.
    blocks[:, signs] ^= rng.integers(0, 2, size=(n_blocks, 1), dtype=np.uint8) << 7
    return blocks, signs


def _write_scales(blocks: Bytes, layout: _BlockLayout, scales: Floats) -> None:
    blocks[:, layout.scale : layout.scale + 2] = scales.astype(np.float16).reshape(-1, 1).view(np.uint8)
    if layout.offset is not None:
        offsets = (scales * np.float32(layout.offset_ratio)).astype(np.float16)
        blocks[:, layout.offset : layout.offset + 2] = offsets.reshape(-1, 1).view(np.uint8)


def _floats(kind: gguf.GGMLQuantizationType, std: float, rng: np.random.Generator) -> tuple[Bytes, slice | list[int]]:
    """Groups of weights, and the byte of each that holds its sign."""
    size = _FLOAT_BYTES[kind]
    n_groups = _prime_below(_POOL_BYTES // (size * _FLOAT_GROUP))
    weights = rng.standard_normal((n_groups, _FLOAT_GROUP), dtype=np.float32) * np.float32(std)
    if kind is _Type.F16:
        stored = weights.astype(np.float16).view(np.uint8)
    elif kind is _Type.BF16:
        stored = (weights.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        stored = weights.view(np.uint8)
    return stored.reshape(n_groups, size * _FLOAT_GROUP), slice(size - 1, None, size)


def _prime_below(limit: int) -> int:
    """The largest prime up to `limit`: laps of that many blocks never fall into step with a tensor's rows."""
    return next(n for n in range(limit, 1, -1) if all(n % k for k in range(2, int(n**0.5) + 1)))

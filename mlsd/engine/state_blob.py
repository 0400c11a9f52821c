"""The bytes in which llama.cpp writes the memory of one sequence: read, checked to the last byte, and cut by block.

The layout is private to llama.cpp, so its user pins the release (`state_link`). All integers are little-endian:

    u32 magic, i32 sequence
    attention, unless only the state was asked for:
        u32 streams (1), u32 cells; a cell: i32 position, u32 sequences (1), [3 x i32 axes], i32 sequence
        u32 transposed values (0), u32 blocks; keys, then values: a block: i32 type, u64 row bytes, cells x row bytes
    recurrent state, where the model has one:
        u32 cells (1); i32 position, u32 sequences (0)
        u32 transposed (0), u32 blocks of the model; then two tables (convolution, state), a recurrent block as above
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from mlsd.errors import EngineError
from mlsd.records import Record

_MAGIC = 0xAF143CD8
_AXES_BYTES = 12
_STATE_TABLES = 2


class BlobShape(Record, frozen=True, kw_only=True):
    """What the model's memory consists of."""

    n_attention: int  # blocks with keys and values
    n_state: int  # blocks with a recurrent state
    n_blocks: int  # all blocks
    has_axes: bool = False  # positions have several axes (M-RoPE)


class Blob(Record, frozen=True, kw_only=True):
    """One sequence's memory. A segment is a block's type, row size and rows, as they lie in the bytes."""

    positions: tuple[int, ...] = ()  # of the attention cells
    cells: bytes = b""  # the attention cells as written
    keys: tuple[bytes, ...] = ()  # a segment an attention block
    values: tuple[bytes, ...] = ()
    state_position: int | None = None
    state_tables: tuple[tuple[bytes, ...], ...] = ()  # a segment a recurrent block

    def select(self, attention: Sequence[int], state: Sequence[int]) -> Blob:
        """Only these of the attention blocks and of the recurrent blocks (each counted among its own kind)."""
        return msgspec.structs.replace(
            self,
            keys=tuple(self.keys[i] for i in attention),
            values=tuple(self.values[i] for i in attention),
            state_tables=tuple(tuple(table[i] for i in state) for table in self.state_tables),
        )


class BlobError(EngineError):
    """The bytes are not laid out as this release of mlsd expects."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise BlobError(f"The saved memory ends at byte {len(self._data)}, inside a field at {self._at}.")
        self._at += size
        return part

    def number(self, code: str = "I") -> int:
        value: int = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return value

    def expect(self, value: int, what: str) -> None:
        found = self.number()
        if found != value:
            raise BlobError(f"The saved memory says {found} where its {what} should be {value}.")

    def segment(self, n_rows: int) -> bytes:
        start = self._at
        self.number("i")
        row_bytes = self.number("Q")
        self.take(n_rows * row_bytes)
        return self._data[start : self._at]

    def end(self) -> None:
        if self._at != len(self._data):
            raise BlobError(f"The saved memory goes on for {len(self._data) - self._at} bytes behind its last block.")


def read_blob(data: bytes, shape: BlobShape, *, state_only: bool = False) -> Blob:
    """Take a saved sequence apart.

    Raises: BlobError at the first field that is not as expected, or for bytes left over.
    """
    reader = _Reader(data)
    reader.expect(_MAGIC, "magic number")
    reader.number("i")
    blob = Blob()
    if shape.n_attention and not state_only:
        blob = _read_attention(reader, shape)
    if shape.n_state:
        blob = _read_state(reader, shape, blob)
    reader.end()
    return blob


def _read_attention(reader: _Reader, shape: BlobShape) -> Blob:
    reader.expect(1, "number of streams")
    n_cells = reader.number()
    positions, cells = [], []
    for _ in range(n_cells):
        cell = reader.take(8 + (_AXES_BYTES if shape.has_axes else 0) + 4)
        position, n_sequences = struct.unpack_from("<iI", cell)
        if n_sequences != 1:
            raise BlobError(f"A memory cell belongs to {n_sequences} sequences, not to one.")
        positions.append(position)
        cells.append(cell)
    reader.expect(0, "transposition of values (flash attention off?)")
    reader.expect(shape.n_attention, "number of attention blocks")
    return Blob(
        positions=tuple(positions),
        cells=b"".join(cells),
        keys=tuple(reader.segment(n_cells) for _ in range(shape.n_attention)),
        values=tuple(reader.segment(n_cells) for _ in range(shape.n_attention)),
    )


def _read_state(reader: _Reader, shape: BlobShape, blob: Blob) -> Blob:
    reader.expect(1, "number of states")
    position = reader.number("i")
    reader.expect(0, "number of sequences of the state")
    reader.expect(0, "transposition of states")
    reader.expect(shape.n_blocks, "number of blocks")
    tables = tuple(tuple(reader.segment(1) for _ in range(shape.n_state)) for _ in range(_STATE_TABLES))
    return msgspec.structs.replace(blob, state_position=position, state_tables=tables)


def write_blob(
    blob: Blob, n_blocks: int, *, sequence: int, state_position: int | None = None, state_only: bool = False
) -> bytes:
    """The bytes of `blob` for a model of `n_blocks` blocks; `state_position` moves the recurrent state there."""
    parts = [struct.pack("<Ii", _MAGIC, sequence)]
    if blob.keys and not state_only:
        parts += [struct.pack("<II", 1, len(blob.positions)), blob.cells, struct.pack("<II", 0, len(blob.keys))]
        parts += [*blob.keys, *blob.values]
    if blob.state_position is not None:
        position = blob.state_position if state_position is None else state_position
        parts += [struct.pack("<IiIII", 1, position, 0, 0, n_blocks)]
        parts += [segment for table in blob.state_tables for segment in table]
    return b"".join(parts)

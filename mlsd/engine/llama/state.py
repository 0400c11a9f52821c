"""A draft cut out of its target that works on the target's own memory: keys, values and states are copied each round.

The published self-speculative methods let the draft read what the target computed for the text so far. A draft in a
file of its own has its own memory; `StateLink` makes it a copy of the target's, block by block. It reads and writes the
bytes in which llama.cpp keeps the memory of one sequence, whose layout is private: its versions are known by number,
every blob is parsed to its end, and `self_test` checks the meaning. All integers are little-endian:

    u32 magic, i32 sequence
    attention, unless only the state was asked for:
        u32 streams (1), u32 cells; a cell: i32 position, u32 sequences (1), [3 x i32 axes], i32 sequence
        u32 transposed values (0), u32 blocks; [u32 rotation of keys, u32 of values: from version 4 (ggml 0.26) on]
        keys, then values: a block: i32 type, u64 row bytes, cells x row bytes
    recurrent state, where the model has one:
        u32 cells (1); i32 position, u32 sequences (0)
        u32 transposed (0), u32 blocks of the model; then two tables (convolution, state), a recurrent block as above
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.native import fail, library, sequence_state_version
from mlsd.errors import EngineError
from mlsd.records import Record

_SPARE = 1  # the sequence through which new positions pass
_STATE_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_FLOATS = {0: "<f4", 1: "<f2"}  # ggml's numbers of F32 and F16
_N_TEST_TOKENS = 8
_ROUNDING_SHARE = 0.02


class LinkPlan(Record, frozen=True, kw_only=True):
    """Which of the target's blocks the draft consists of, counted among the blocks of their kind."""

    target: BlobShape
    draft: BlobShape
    attention: tuple[int, ...]  # target's attention blocks in the draft, in order
    state: tuple[int, ...]  # target's recurrent blocks in the draft, in order
    shares_attention: bool = True  # False: the draft's attention says nothing and its memory stays empty
    own_attention: bool = False  # nothing is cut out before the draft's first attention block
    own_state: bool = False  # nor before its first recurrent block


class StateLink:
    """Copies a target's memory into a draft. Both contexts must have been opened with two sequences."""

    def __init__(self, target: LlamaContext, draft: LlamaContext, plan: LinkPlan) -> None:
        """Ask which version of the layout this build writes. Raises: BlobError for one that is not known."""
        self._native, self._version = library(), sequence_state_version()
        if self._version not in VERSIONS:
            raise BlobError(f"This build writes version {self._version} of a sequence's memory; {VERSIONS} are known.")
        self._target, self._draft, self._plan = target, draft, plan
        self._n_linked = 0  # positions of the draft that are the target's
        self.n_bytes = 0  # written into the draft so far

    def reset(self) -> None:
        self._draft.clear()
        self._n_linked = self.n_bytes = 0

    def pull(self) -> None:
        """Make the draft's memory the target's: speculative positions go, new positions come. Raises: EngineError."""
        plan, n_past = self._plan, self._target.n_past
        state = self._read_state() if plan.state else None
        if not plan.shares_attention:
            self._remove(self._draft, 0, -1)
            if state is not None:
                self._write(write_blob(state, plan.draft.n_blocks, sequence=0), 0, _STATE_ONLY)
        else:
            self._drop_speculative(state)
            blob = _with_state(self._read_new(self._n_linked, n_past), state)
            self._write(write_blob(blob, plan.draft.n_blocks, sequence=_SPARE), _SPARE, 0)
            self._native.llama_memory_seq_cp(self._draft.memory, _SPARE, 0, self._n_linked, n_past)
            self._remove(self._draft, _SPARE, -1)
        self._draft.n_past = self._n_linked = n_past

    def _read_state(self) -> Blob:
        # Of sequence 0: it honours a rollback that is still pending, which a copy of the sequence would not.
        blob = self._parse(self._target.read_sequence(0, _STATE_ONLY), self._plan.target, state_only=True)
        if blob.state_position != self._target.n_past - 1:
            raise BlobError(f"The target's state is at position {blob.state_position}, not {self._target.n_past - 1}.")
        return blob.select((), self._plan.state)

    def _drop_speculative(self, state: Blob | None) -> None:
        """Cut the draft back to the linked positions, to which a recurrent state must first be moved."""
        if self._draft.n_past == self._n_linked:
            return
        if state is not None:
            moved = msgspec.structs.replace(state, state_position=self._n_linked - 1)
            self._write(write_blob(moved, self._plan.draft.n_blocks, sequence=0), 0, _STATE_ONLY)
        self._remove(self._draft, 0, self._n_linked)

    def _read_new(self, first: int, n_past: int) -> Blob:
        """The target's attention memory of the positions from `first` on."""
        self._native.llama_memory_seq_cp(self._target.memory, 0, _SPARE, first, n_past)
        try:
            blob = self._parse(self._target.read_sequence(_SPARE), self._plan.target)
        finally:
            self._remove(self._target, _SPARE, -1)
        if sorted(blob.positions) != list(range(first, n_past)):
            raise BlobError(f"The target has {len(blob.positions)} positions, not {first} to {n_past - 1}.")
        return blob.select(self._plan.attention, self._plan.state)

    # --- native ---------------------------------------------------------------------------------------------------

    def _parse(self, data: Any, shape: BlobShape, *, state_only: bool = False) -> Blob:
        return read_blob(bytes(data), shape, version=self._version, state_only=state_only)

    def _write(self, data: bytes, sequence: int, flags: int) -> None:
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        read = self._native.llama_state_seq_set_data_ext(self._draft.handle, buffer, len(data), sequence, flags)
        if read != len(data):
            raise BlobError(f"llama.cpp read {read} of {len(data)} bytes of a sequence's memory.")
        self.n_bytes += len(data)

    def _remove(self, context: LlamaContext, sequence: int, first: int) -> None:
        if not self._native.llama_memory_seq_rm(context.memory, sequence, first, -1):
            raise BlobError(f"llama.cpp cannot remove sequence {sequence} from position {first} on.")

    # --- self-test ------------------------------------------------------------------------------------------------

    def self_test(self) -> None:
        """Copy the memory of a few tokens in two steps and compare; both contexts are empty afterwards. Raises:
        BlobError.

        What was written must be read back unchanged. Blocks before which nothing was cut out depend on the tokens
        alone, so their memory must be what the draft computes itself.
        """
        tokens = [token % self._target.tokenizer.vocabulary.n_tokens for token in range(11, 11 + 2 * _N_TEST_TOKENS)]
        parts = (tokens[:_N_TEST_TOKENS], tokens[_N_TEST_TOKENS:])
        self._target.clear()
        self._draft.clear()
        for part in parts:
            self._draft.decode(part)
        computed = self._read_draft()
        self.reset()
        for part in parts:
            self._target.decode(part)
            self.pull()
        linked = self._read_draft()
        attention = self._read_new(0, len(tokens)) if self._plan.shares_attention else Blob()
        expected = _with_state(attention, self._read_state() if self._plan.state else None)
        if _rows(linked) != _rows(expected):
            raise BlobError("The draft's memory differs from what was written into it.")
        if not all(map(_close, self._own_rows(computed), self._own_rows(linked))):
            raise BlobError("The memory copied for a first block is not what the draft computes for the same tokens.")
        self._target.clear()
        self.reset()

    def _own_rows(self, blob: Blob) -> Sequence[bytes]:
        keys_and_values = (*blob.keys[:1], *blob.values[:1]) if self._plan.own_attention else ()
        return *keys_and_values, *(table[0] for table in blob.state_tables if self._plan.own_state)

    def _read_draft(self) -> Blob:
        only_state = not self._plan.shares_attention
        data = self._draft.read_sequence(0, _STATE_ONLY if only_state else 0)
        return self._parse(data, self._plan.draft, state_only=only_state)


def _with_state(blob: Blob, state: Blob | None) -> Blob:
    if state is None:
        return blob
    return msgspec.structs.replace(blob, state_tables=state.state_tables, state_position=state.state_position)


def _rows(blob: Blob) -> tuple[object, ...]:
    return blob.positions, blob.keys, blob.values, blob.state_position, blob.state_tables


def _close(ours: bytes, theirs: bytes) -> bool:
    """Whether two segments hold the same values but for rounding; types that are not floats must agree to the bit."""
    kind = np.frombuffer(ours[:4], dtype="<i4")[0]
    if ours[:12] != theirs[:12] or kind not in _FLOATS:
        return ours == theirs
    a, b = (np.frombuffer(data[12:], dtype=_FLOATS[kind]).astype(np.float64) for data in (ours, theirs))
    return float(np.abs(a - b).mean()) <= _ROUNDING_SHARE * float(np.abs(a).mean())


def check_saved(context: LlamaContext, tokens: Sequence[int], shape: BlobShape) -> None:
    """Save the memory of a few tokens, take it apart, load it, and compare what follows with what followed before.

    Raises: NativeError; BlobError for another layout than this build should write, or for other logits.
    """
    native, version = library(), sequence_state_version()
    context.clear()
    context.decode(tokens[:-1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sequence"
        if not native.llama_state_seq_save_file(context.handle, os.fsencode(path), 0, None, 0):
            raise fail("Saving the memory of a sequence to a file failed")
        written = struct.unpack_from("<4sI", path.read_bytes())[1]
    if written != version or version not in VERSIONS:
        raise BlobError(f"It writes version {written} of a sequence's memory; its ggml has version {version}.")
    data = context.copy_memory()
    blob = read_blob(bytes(data), shape, version=version)
    if write_blob(blob, shape.n_blocks, sequence=0) != bytes(data):
        raise BlobError("A sequence's memory changed when it was parsed and written again.")
    context.decode(tokens[-1:])
    expected = context.logits().copy()
    context.set_memory(data, len(tokens) - 1)
    context.decode(tokens[-1:])
    if not np.allclose(context.logits(), expected, atol=_ROUNDING_SHARE * float(np.std(expected))):
        raise BlobError("After a sequence's memory was saved and loaded, other logits follow.")


VERSIONS = (3, 4)  # of the layout, as llama.h numbers it (LLAMA_STATE_SEQ_VERSION)
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
    rotations: bytes = b""  # of keys and of values, as written; none before version 4
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


class _BlobReader:
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
        number = self.number()
        if number != value:
            raise BlobError(f"The saved memory has {number} as its {what}, not {value}.")

    def segment(self, n_rows: int) -> bytes:
        start = self._at
        self.number("i")
        row_bytes = self.number("Q")
        self.take(n_rows * row_bytes)
        return self._data[start : self._at]

    def end(self) -> None:
        if self._at != len(self._data):
            raise BlobError(f"The saved memory has {len(self._data) - self._at} bytes after its last block.")


def read_blob(data: bytes, shape: BlobShape, *, version: int, state_only: bool = False) -> Blob:
    """Take a saved sequence of that layout apart. Raises: BlobError at the first wrong field or bytes left over."""
    reader = _BlobReader(data)
    reader.expect(_MAGIC, "magic number")
    reader.number("i")
    blob = Blob()
    if shape.n_attention and not state_only:
        blob = _read_attention(reader, shape, version)
    if shape.n_state:
        blob = _read_state(reader, shape, blob)
    reader.end()
    return blob


def _read_attention(reader: _BlobReader, shape: BlobShape, version: int) -> Blob:
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
        rotations=reader.take(8) if version >= 4 else b"",
        positions=tuple(positions),
        cells=b"".join(cells),
        keys=tuple(reader.segment(n_cells) for _ in range(shape.n_attention)),
        values=tuple(reader.segment(n_cells) for _ in range(shape.n_attention)),
    )


def _read_state(reader: _BlobReader, shape: BlobShape, blob: Blob) -> Blob:
    reader.expect(1, "number of states")
    position = reader.number("i")
    reader.expect(0, "number of sequences of the state")
    reader.expect(0, "transposition of states")
    reader.expect(shape.n_blocks, "number of blocks")
    tables = tuple(tuple(reader.segment(1) for _ in range(shape.n_state)) for _ in range(_STATE_TABLES))
    return msgspec.structs.replace(blob, state_position=position, state_tables=tables)


def write_blob(blob: Blob, n_blocks: int, *, sequence: int) -> bytes:
    """The bytes of `blob` for a model of `n_blocks` blocks."""
    parts = [struct.pack("<Ii", _MAGIC, sequence)]
    if blob.keys:
        parts += [struct.pack("<II", 1, len(blob.positions)), blob.cells, struct.pack("<II", 0, len(blob.keys))]
        parts += [blob.rotations, *blob.keys, *blob.values]
    if blob.state_position is not None:
        parts += [struct.pack("<IiIII", 1, blob.state_position, 0, 0, n_blocks)]
        parts += [segment for table in blob.state_tables for segment in table]
    return b"".join(parts)

"""The bytes of a sequence's memory: read, cut and written again, and every damage found."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.engine.llama.state import VERSIONS, Blob, BlobError, BlobShape, read_blob, write_blob


def segment(kind: int, row_bytes: int, n_rows: int, fill: int) -> bytes:
    return struct.pack("<iQ", kind, row_bytes) + bytes([fill % 256]) * (row_bytes * n_rows)


@st.composite
def memories(draw: st.DrawFn) -> tuple[Blob, BlobShape, int]:
    version = draw(st.sampled_from(VERSIONS))
    n_attention, n_state = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    if n_attention + n_state == 0:
        n_attention = 1
    has_axes = draw(st.booleans())
    n_cells = draw(st.integers(1, 4)) if n_attention else 0
    first = draw(st.integers(0, 100))
    positions = tuple(range(first, first + n_cells))
    axes = (b"\1" * 12) if has_axes else b""
    row = draw(st.integers(1, 9))
    blob = Blob(
        positions=positions,
        rotations=bytes(8) if version >= 4 and n_attention else b"",
        cells=b"".join(struct.pack("<iI", place, 1) + axes + struct.pack("<i", 0) for place in positions),
        keys=tuple(segment(1, row, n_cells, i) for i in range(n_attention)),
        values=tuple(segment(1, row + 1, n_cells, 10 + i) for i in range(n_attention)),
        state_position=first + 7 if n_state else None,
        state_tables=tuple(tuple(segment(0, row + t, 1, 20 + i) for i in range(n_state)) for t in range(2))
        if n_state
        else (),
    )
    shape = BlobShape(n_attention=n_attention, n_state=n_state, n_blocks=n_attention + n_state, has_axes=has_axes)
    return blob, shape, version


@given(memories())
def test_what_is_written_is_read_again(memory: tuple[Blob, BlobShape, int]) -> None:
    blob, shape, version = memory
    assert read_blob(write_blob(blob, shape.n_blocks, sequence=1), shape, version=version) == blob


@given(memories(), st.data())
def test_every_shortened_or_prolonged_memory_is_refused(
    memory: tuple[Blob, BlobShape, int], data: st.DataObject
) -> None:
    blob, shape, version = memory
    written = write_blob(blob, shape.n_blocks, sequence=0)
    end = data.draw(st.integers(0, len(written) - 1))
    with pytest.raises(BlobError):
        read_blob(written[:end], shape, version=version)
    with pytest.raises(BlobError, match="after its last block"):
        read_blob(written + b"\0", shape, version=version)


@given(memories())
def test_a_choice_of_blocks_holds_their_bytes_and_no_others(memory: tuple[Blob, BlobShape, int]) -> None:
    blob, shape, version = memory
    attention, state = range(0, shape.n_attention, 2), range(0, shape.n_state, 2)
    chosen = blob.select(attention, state)
    smaller = BlobShape(
        n_attention=len(attention),
        n_state=len(state),
        n_blocks=len(attention) + len(state),
        has_axes=shape.has_axes,
    )
    again = read_blob(write_blob(chosen, smaller.n_blocks, sequence=0), smaller, version=version)
    assert again.keys == tuple(blob.keys[i] for i in attention)
    assert again.state_tables == tuple(tuple(table[i] for i in state) for table in blob.state_tables)


@pytest.mark.parametrize(("at", "what"), [(0, "magic"), (8, "streams"), (16 + 4, "sequences"), (28, "transposition")])
def test_a_field_of_another_value_is_named(at: int, what: str) -> None:
    shape = BlobShape(n_attention=1, n_state=0, n_blocks=1)
    blob = Blob(
        positions=(3,), cells=struct.pack("<iIi", 3, 1, 0), keys=(segment(1, 4, 1, 1),), values=(segment(1, 4, 1, 2),)
    )
    data = bytearray(write_blob(blob, 1, sequence=0))
    data[at] ^= 0x7F
    with pytest.raises(BlobError, match=what):
        read_blob(bytes(data), shape, version=3)

"""Faults of llama.cpp itself, put in at its door: every context has them, those of a run and those that judge it.

A rollback that is broken in this way is broken alike wherever it is used, as native faults are.
"""

import ctypes
import struct
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from mlsd.engine.llama.native import library

STATE_FAULTS = ("half", "layer", "earlier", "ahead")  # of memory with a recurrent part
CELL_FAULTS = ("ghost", "shifted")  # of attention alone
TREE_FAULTS = ("ghost", "parents")
READING_FAULTS = ("token", "text", "positions", "stale")  # of a prompt that is read, before anything is taken back

_LEAST_READING = 33  # tokens of a pass from the first position on that reads a prompt: what warms a context has fewer

_HEADER_BYTES = 8  # magic number and sequence, before the parts of a saved sequence
_SHAPE_BYTES = 20  # cells, position, sequences, transposition, blocks: before the tables of the recurrent part


class NativeFault:
    """One kind of fault, at a share of the calls that it can spoil.

    half     of a state that is brought back, the second half of every block's rows stays as it was
    layer    one block's state stays as it was
    earlier  the state of the rollback before is brought back
    ahead    the state of one position further is brought back
    ghost    a rejected cell stays in the attention beside the true ones; of a tree, what lost stays where it was
    shifted  a rejected cell takes the place of the last that was kept
    parents  of two nodes of a tree that have children each has those of the other
    token    a prompt is read with one wrong token
    text     another prompt is read in place of the one given
    positions  half of the cells of a prompt that was read stand one position too early, where there is attention
    stale    a rejected token is in the first copy of the memory behind a prompt that was read
    """

    def __init__(self, kind: str, rate: float, seed: int = 0, readings: Container[int] = range(99)) -> None:
        """`readings` of a prompt that go wrong, counted from 0."""
        self.kind, self.n_faults = kind, 0
        self._rate, self._rng = rate, np.random.default_rng(seed)
        self._readings, self._n_readings = readings, Counter[tuple[int, ...]]()
        self._native = library()
        names = ("get_size_ext", "get_data_ext", "set_data_ext")
        self._size, self._get, self._set = (getattr(self._native, f"llama_state_seq_{name}") for name in names)
        self._remove, self._decode = self._native.llama_memory_seq_rm, self._native.llama_decode
        self._contexts: dict[int, Any] = {}  # by memory
        self._before: dict[int, bytes] = {}  # by context: the state of the rollback before
        self._n_tail = 0  # bytes of the recurrent part of what was saved last
        self._read: dict[int, int] = {}  # by context: tokens of the prompt that it has read, where it goes wrong

    def _strikes(self) -> bool:
        hit = bool(self._rng.random() < self._rate)
        self.n_faults += hit
        return hit

    # --- in the place of native functions -----------------------------------------------------------------------------

    def get_memory(self, real: Callable[[Any], Any], context: Any) -> Any:
        memory = real(context)
        self._contexts[_address(memory)] = context
        return memory

    def size(self, context: Any, sequence: int, flags: int) -> int:
        n_read = self._read.pop(_address(context), 0)
        if self.kind == "stale" and n_read:
            self.n_faults += 1
            token = (ctypes.c_int32 * 1)(int(self._rng.integers(_LEAST_READING)))
            assert self._decode(context, self._native.llama_batch_get_one(token, 1)) == 0
            memory = self._native.llama_get_memory(context)
            self._native.llama_memory_seq_add(memory, 0, n_read, n_read + 1, -1)
        return int(self._size(context, sequence, flags & 1))  # on the host, where bytes can be seen

    def get(self, context: Any, data: Any, size: int, sequence: int, flags: int) -> int:
        self._n_tail = int(self._size(context, sequence, 1)) - _HEADER_BYTES
        return int(self._get(context, data, size, sequence, flags & 1))

    def set(self, context: Any, data: Any, size: int, sequence: int, flags: int) -> int:
        given = bytes(data)[:size]
        if self.kind in STATE_FAULTS and self._strikes():
            true, kept = given, self._state(context)
            if not flags & 1:  # a whole memory, of another context perhaps: its recurrent part is as large as here
                self._set(context, (ctypes.c_uint8 * size).from_buffer_copy(given), size, sequence, 0)
                self._n_tail = int(self._size(context, sequence, 1)) - _HEADER_BYTES
            given = self._spoilt(context, given, kept)
            self._before[_address(context)] = true
        buffer = (ctypes.c_uint8 * size).from_buffer_copy(given)
        return int(self._set(context, buffer, size, sequence, flags & 1))

    def remove(self, memory: Any, sequence: int, first: int, end: int) -> bool:
        context = self._contexts.get(_address(memory))
        if self.kind in STATE_FAULTS and context is not None and end == -1 and first > 0:
            return self._remove_state(memory, context, sequence, first, end)
        if self.kind == "ghost" and sequence >= 0 and end > first > 0 and self._strikes():
            return True  # of a tree: what lost stays
        is_cut = sequence <= 0 and end == -1 and first > 1
        if (
            not is_cut
            or self.kind not in CELL_FAULTS
            or not self._reaches(memory, sequence, first)
            or not self._strikes()
        ):
            return bool(self._remove(memory, sequence, first, end))
        if self.kind == "shifted":
            self._remove(memory, sequence, first - 1, first)
        self._remove(memory, sequence, first + 1, end)
        # Of a tree's sequences a single one keeps the cell, and all see it.
        others = range(256) if sequence < 0 else ()
        keeper = max((id_ for id_ in others if self._last(memory, id_) >= first), default=0)
        for id_ in others:
            if id_ != keeper:
                self._remove(memory, id_, first, -1)
        self._native.llama_memory_seq_add(memory, keeper, first, first + 1, -1)
        for id_ in others:
            if id_ != keeper and self._last(memory, id_) == first - 1:
                self._native.llama_memory_seq_cp(memory, keeper, id_, first - 1, first)
        return True

    def decode(self, context: Any, batch: Any) -> int:
        self._read.pop(_address(context), None)
        if self.kind in READING_FAULTS and batch.n_tokens >= _LEAST_READING and batch.pos[0] == 0:
            return self._misread(context, batch)
        is_tree = batch.n_tokens > 2 and batch.n_seq_id and batch.n_seq_id[0] > 1
        if self.kind != "parents" or not is_tree:
            return int(self._decode(context, batch))
        inner = [i for i in range(1, batch.n_tokens - 1) if batch.pos[i + 1] == batch.pos[i] + 1]
        pairs = [(i, j) for i in inner for j in inner if i < j and batch.pos[i] == batch.pos[j]]
        if not pairs or not self._strikes():
            return int(self._decode(context, batch))
        i, j = pairs[int(self._rng.integers(len(pairs)))]
        batch.token[i], batch.token[j] = batch.token[j], batch.token[i]
        return int(self._decode(context, batch))

    def _misread(self, context: Any, batch: Any) -> int:
        """Read a prompt, in another way where the fault strikes."""
        n, tokens = batch.n_tokens, batch.token[: batch.n_tokens]
        is_hit = self._n_readings[tuple(tokens)] in self._readings
        self._n_readings[tuple(tokens)] += 1
        strikes = is_hit and self.kind != "stale"
        self.n_faults += strikes
        if strikes and self.kind == "token":
            index, other = (int(i) for i in self._rng.integers(1, n, 2))
            batch.token[index] = tokens[other] if tokens[other] != tokens[index] else tokens[index] ^ 1
        elif strikes and self.kind == "text":
            by = int(self._rng.integers(1, n))
            for index in range(n):
                batch.token[index] = tokens[(index + by) % n]
        code = int(self._decode(context, batch))
        if strikes and self.kind == "positions":
            memory = self._native.llama_get_memory(context)
            self._native.llama_memory_seq_add(memory, 0, int(self._rng.integers(1, n // 2)), n - 1, -1)
        self._read[_address(context)] = n * is_hit
        return code

    # --- recurrent states ---------------------------------------------------------------------------------------------

    def _remove_state(self, memory: Any, context: Any, sequence: int, first: int, end: int) -> bool:
        """A cut that moves a recurrent state back, by a snapshot."""
        strikes = self._last(memory) >= first and self._strikes()
        if strikes and self.kind == "ahead":
            return self._leave_ahead(memory, context, sequence, first)
        kept = self._state(context)
        self._n_tail = len(kept) - _HEADER_BYTES
        if not self._remove(memory, sequence, first, end):
            return False
        true = self._state(context)
        if strikes and len(true) == len(kept):
            spoilt = self._spoilt(context, true, kept)
            buffer = (ctypes.c_uint8 * len(spoilt)).from_buffer_copy(spoilt)
            assert self._set(context, buffer, len(spoilt), 0, 1) == len(spoilt)
        self._before[_address(context)] = true
        return True

    def _leave_ahead(self, memory: Any, context: Any, sequence: int, first: int) -> bool:
        """Cut as asked, but leave the state of one position further under the number of the last that stays."""
        if self._last(memory) > first and not self._remove(memory, sequence, first + 1, -1):
            return False
        ahead = bytearray(self._state(context))
        struct.pack_into("<i", ahead, _HEADER_BYTES + 4, first - 1)
        assert self._set(context, (ctypes.c_uint8 * len(ahead)).from_buffer(ahead), len(ahead), 0, 1) == len(ahead)
        return bool(self._remove(memory, sequence, first, -1))

    def _reaches(self, memory: Any, sequence: int, first: int) -> bool:
        return any(self._last(memory, id_) >= first for id_ in (range(256) if sequence < 0 else (0,)))

    def _last(self, memory: Any, sequence: int = 0) -> int:
        return int(self._native.llama_memory_seq_pos_max(memory, sequence))

    def _state(self, context: Any) -> bytes:
        size = int(self._size(context, 0, 1))
        data = (ctypes.c_uint8 * size)()
        self._get(context, data, size, 0, 1)
        return bytes(data)

    def _spoilt(self, context: Any, given: bytes, kept: bytes) -> bytes:
        """`given`, a saved sequence, with what the fault leaves of `kept`, the state that was there."""
        other = self._before.get(_address(context), kept) if self.kind == "earlier" else kept
        if len(other) - _HEADER_BYTES < self._n_tail:
            other = b""  # nothing was there
        segments = _segments(given, len(given) - self._n_tail)
        mixed = bytearray(given)
        chosen = segments[len(segments) // 2 - 1 :: len(segments) // 2] if self.kind == "layer" else segments
        for begin, size in chosen:
            if self.kind == "half":
                begin, size = begin + size // 2, size - size // 2
            source = begin - len(given) + len(other)
            mixed[begin : begin + size] = other[source : source + size] if other else bytes(size)
        return bytes(mixed)


def _segments(data: bytes, tail: int) -> list[tuple[int, int]]:
    """Where the rows of each recurrent block lie, and how long they are."""
    at, segments = tail + _SHAPE_BYTES, []
    while at + 12 <= len(data):
        size = struct.unpack_from("<Q", data, at + 4)[0]
        segments.append((at + 12, size))
        at += 12 + size
    assert at == len(data), "a saved state is laid out in another way"
    return segments


def _address(handle: Any) -> int:
    return int(getattr(handle, "value", handle) or 0) if not isinstance(handle, int) else handle


@contextmanager
def native_fault(
    kind: str, rate: float = 1.0, seed: int = 0, readings: Container[int] = range(99)
) -> Iterator[NativeFault]:
    """Every context that is opened inside has the fault."""
    fault, native = NativeFault(kind, rate, seed, readings), library()
    real = native.llama_get_memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "llama_get_memory", lambda context: fault.get_memory(real, context))
        patch.setattr(native, "llama_state_seq_get_size_ext", fault.size)
        patch.setattr(native, "llama_state_seq_get_data_ext", fault.get)
        patch.setattr(native, "llama_state_seq_set_data_ext", fault.set)
        patch.setattr(native, "llama_memory_seq_rm", fault.remove)
        patch.setattr(native, "llama_decode", fault.decode)
        yield fault

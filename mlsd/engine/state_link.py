"""A draft cut out of its target that works on the target's own memory: keys, values and states are copied each round.

The published self-speculative methods let the draft read what the target computed for the text so far. A draft in a
file of its own has its own memory; this link makes it a copy of the target's, block by block. It reads and writes
private bytes of llama.cpp: the release is pinned, every blob is parsed to its end, and `self_test` checks the meaning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import metadata

import numpy as np

from mlsd.engine._native import PINNED_VERSION, fail, library
from mlsd.engine.llama import LlamaSession
from mlsd.engine.state_blob import Blob, BlobError, BlobShape, read_blob, write_blob
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
    """Copies a target's memory into a draft. Both sessions must have been opened with two sequences."""

    def __init__(self, target: LlamaSession, draft: LlamaSession, plan: LinkPlan) -> None:
        """Check the release.

        Raises: BlobError when another one is installed.
        """
        version = metadata.version("llama-cpp-python")
        if version != PINNED_VERSION:
            raise BlobError(f"llama-cpp-python {version} may lay out its memory otherwise than {PINNED_VERSION}.")
        self._native = library()
        self._target, self._draft, self._plan = target, draft, plan
        self._n_linked = 0  # positions of the draft that are the target's
        self.n_bytes = 0  # written into the draft so far

    def reset(self) -> None:
        """Start a new text: the draft forgets everything."""
        self._draft.clear()
        self._n_linked = self.n_bytes = 0

    def pull(self) -> None:
        """Make the draft's memory the target's: its own speculative positions go, new positions come.

        Raises: BlobError, NativeError.
        """
        plan, n_past = self._plan, self._target.n_past
        state = self._read_state() if plan.state else None
        if not plan.shares_attention:
            self._remove(self._draft, 0, -1)
            if state is not None:
                self._write(write_blob(state, plan.draft.n_blocks, sequence=0, state_only=True), 0, _STATE_ONLY)
        else:
            self._drop_speculative(state)
            blob = self._read_new(n_past)
            if state is not None:
                blob = _with_state(blob, state)
            self._write(write_blob(blob, plan.draft.n_blocks, sequence=_SPARE), _SPARE, 0)
            self._native.llama_memory_seq_cp(self._draft.memory, _SPARE, 0, self._n_linked, n_past)
            self._remove(self._draft, _SPARE, -1)
        self._draft.n_past = self._n_linked = n_past

    def _read_state(self) -> Blob:
        # Of sequence 0: it honours a rollback that is still pending, which a copy of the sequence would not.
        blob = read_blob(self._read(self._target, 0, _STATE_ONLY), self._plan.target, state_only=True)
        if blob.state_position != self._target.n_past - 1:
            raise BlobError(f"The target's state stands at {blob.state_position}, not at {self._target.n_past - 1}.")
        return blob.select((), self._plan.state)

    def _drop_speculative(self, state: Blob | None) -> None:
        """Cut the draft back to the linked positions; a recurrent state must first be said to stand there."""
        if self._draft.n_past == self._n_linked:
            return
        if state is not None:
            n_blocks, position = self._plan.draft.n_blocks, self._n_linked - 1
            data = write_blob(state, n_blocks, sequence=0, state_position=position, state_only=True)
            self._write(data, 0, _STATE_ONLY)
        self._remove(self._draft, 0, self._n_linked)

    def _read_new(self, n_past: int) -> Blob:
        """The target's attention memory of the positions that the draft does not have yet."""
        self._native.llama_memory_seq_cp(self._target.memory, 0, _SPARE, self._n_linked, n_past)
        try:
            blob = read_blob(self._read(self._target, _SPARE, 0), self._plan.target)
        finally:
            self._remove(self._target, _SPARE, -1)
        if sorted(blob.positions) != list(range(self._n_linked, n_past)):
            raise BlobError(f"The target gave {len(blob.positions)} positions, not {self._n_linked} to {n_past - 1}.")
        return blob.select(self._plan.attention, self._plan.state)

    # --- native ---------------------------------------------------------------------------------------------------

    def _read(self, session: LlamaSession, sequence: int, flags: int) -> bytes:
        native = self._native
        size = int(native.llama_state_seq_get_size_ext(session.handle, sequence, flags))
        buffer = (ctypes.c_uint8 * size)()
        written = native.llama_state_seq_get_data_ext(session.handle, buffer, size, sequence, flags)
        if written != size or size == 0:
            raise fail(f"Reading the memory of a sequence gave {written} of {size} bytes")
        return bytes(buffer)

    def _write(self, data: bytes, sequence: int, flags: int) -> None:
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        read = self._native.llama_state_seq_set_data_ext(self._draft.handle, buffer, len(data), sequence, flags)
        if read != len(data):
            raise BlobError(f"llama.cpp took {read} of {len(data)} bytes of memory.")
        self.n_bytes += len(data)

    def _remove(self, session: LlamaSession, sequence: int, first: int) -> None:
        if not self._native.llama_memory_seq_rm(session.memory, sequence, first, -1):
            raise BlobError(f"llama.cpp cannot forget sequence {sequence} from position {first}.")

    # --- self-test ------------------------------------------------------------------------------------------------

    def self_test(self) -> None:
        """Copy the memory of a few tokens in two steps and compare; both sessions are empty afterwards.

        What was written must be read back unchanged; and of blocks before which nothing was cut out, whose memory so
        depends on the tokens alone, it must be what the draft computes itself.

        Raises: BlobError when it is not.
        """
        tokens = [token % self._target.vocabulary.n_tokens for token in range(11, 11 + 2 * _N_TEST_TOKENS)]
        parts = (tokens[:_N_TEST_TOKENS], tokens[_N_TEST_TOKENS:])
        self._target.clear()
        self._draft.clear()
        for part in parts:
            self._draft.decode(part)
        own = self._read_draft()
        self.reset()
        for part in parts:
            self._target.decode(part)
            self.pull()
        linked, expected = self._read_draft(), self._expected(len(tokens))
        if _rows(linked) != _rows(expected):
            raise BlobError("The memory read back from the draft is not what was written.")
        if not all(map(_close, self._own_rows(own), self._own_rows(linked))):
            raise BlobError("A first block's memory is not what the draft computes for the same tokens.")
        self._target.clear()
        self.reset()

    def _own_rows(self, blob: Blob) -> Sequence[bytes]:
        keys_and_values = (*blob.keys[:1], *blob.values[:1]) if self._plan.own_attention else ()
        return *keys_and_values, *(table[0] for table in blob.state_tables if self._plan.own_state)

    def _read_draft(self) -> Blob:
        only_state = not self._plan.shares_attention
        return read_blob(
            self._read(self._draft, 0, _STATE_ONLY if only_state else 0), self._plan.draft, state_only=only_state
        )

    def _expected(self, n_past: int) -> Blob:
        n_linked, self._n_linked = self._n_linked, 0
        try:
            blob = self._read_new(n_past) if self._plan.shares_attention else Blob()
        finally:
            self._n_linked = n_linked
        return _with_state(blob, self._read_state()) if self._plan.state else blob


def _with_state(blob: Blob, state: Blob) -> Blob:
    return Blob(
        positions=blob.positions,
        cells=blob.cells,
        keys=blob.keys,
        values=blob.values,
        state_position=state.state_position,
        state_tables=state.state_tables,
    )


def _rows(blob: Blob) -> tuple[object, ...]:
    """What two blobs of the same text share whichever sequence they were written for."""
    return blob.positions, blob.keys, blob.values, blob.state_position, blob.state_tables


def _close(ours: bytes, theirs: bytes) -> bool:
    """Whether two segments hold the same values but for rounding; types that are not floats must agree to the bit."""
    kind = np.frombuffer(ours[:4], dtype="<i4")[0]
    if ours[:12] != theirs[:12] or kind not in _FLOATS:
        return ours == theirs
    a, b = (np.frombuffer(data[12:], dtype=_FLOATS[kind]).astype(np.float64) for data in (ours, theirs))
    return float(np.abs(a - b).mean()) <= _ROUNDING_SHARE * float(np.abs(a).mean())

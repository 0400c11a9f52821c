"""Rollbacks that break on purpose, to see whether judging notices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import cast

from mlsd.engine.llama.native import fail, library
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.rollback import Rollback
from mlsd.engine.session import Session

FAULTS = ("extra-token", "lost-token", "ghost-cell", "state-ahead")


class Sabotage(Rollback):
    """A sound strategy that is broken after every rejection, or after the first.

    extra-token   a token more stays than was accepted
    lost-token    the last accepted token goes too (needs two that stay)
    ghost-cell    a rejected token's cell stays in the attention beside the true ones
    state-ahead   a recurrent state that has seen one token more than the attention
    """

    def __init__(self, inner: Rollback, session: Session, fault: str, *, once: bool) -> None:
        self.name = inner.name
        self.n_faults = 0
        self._inner, self._session, self._fault, self._once = inner, session, fault, once

    def mark(self) -> None:
        self._inner.mark()

    def step(self) -> None:
        self._inner.step()

    def rewind(self, n_past: int, replay: Sequence[int]) -> int:
        if (self._once and self.n_faults) or (self._fault == "lost-token" and len(replay) < 2):
            return self._inner.rewind(n_past, replay)
        self.n_faults += 1
        if self._fault == "lost-token":
            return self._inner.rewind(n_past - 1, replay[:-1])
        n_again = self._inner.rewind(n_past, replay)
        if self._fault == "extra-token":
            self._session.decode(replay[-1:], n_outputs=0)
        else:
            _DAMAGE[self._fault](self._session, replay[-1])
        return n_again


def leave_ghost(session: Session, token: int) -> None:
    """Decode a token and forget it everywhere but in the attention, where its cell stays beside the true ones."""
    broken = cast(LlamaSession, session)
    recurrent = broken.model.is_recurrent
    if recurrent:
        broken.save_state()
    broken.decode((token,), n_outputs=0)
    broken.n_past -= 1
    if recurrent:
        broken.load_state()
    if not broken.has_position_axes:  # where cells may share any position but the next; and there no cut finds it
        library().llama_memory_seq_add(broken.memory, 0, broken.n_past, broken.n_past + 1, -1)


def run_ahead(session: Session, token: int) -> None:
    """Let the recurrent state take in a token that the attention does not see."""
    broken, native = cast(LlamaSession, session), library()
    broken.save_state()
    broken.decode((token,), n_outputs=0)
    flags = native.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    size = int(native.llama_state_seq_get_size_ext(broken.handle, 0, flags))
    ahead = (ctypes.c_uint8 * size)()
    if native.llama_state_seq_get_data_ext(broken.handle, ahead, size, 0, flags) != size:
        raise fail("Reading the state of another position failed")
    broken.load_state()
    broken.truncate(broken.n_past - 1)
    if native.llama_state_seq_set_data_ext(broken.handle, ahead, size, 0, flags) != size:
        raise fail("Writing the state of another position failed")


_DAMAGE: dict[str, Callable[[Session, int], None]] = {"ghost-cell": leave_ghost, "state-ahead": run_ahead}

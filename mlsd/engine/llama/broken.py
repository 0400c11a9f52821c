"""Sessions that do wrong on purpose: the study's mistake, and memories damaged to see whether judging notices."""

from __future__ import annotations

import ctypes
from typing import cast

from mlsd.engine.llama.native import LOG, fail, library
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.session import Session
from mlsd.errors import MlsdError


class UncheckedSession(LlamaSession):
    """What the study's tool did: native calls that fail are counted and ignored."""

    _earlier: list[int] = []  # noqa: RUF012 - replaced, never changed

    def _check_capacity(self, width: int) -> None:
        """Nothing is refused."""

    def _failed(self, error: MlsdError) -> None:
        self.failed_native_calls += 1
        LOG.drain()

    def greedy(self) -> list[int]:
        """The same; where an output row has no token, whatever an earlier pass left behind."""
        tokens = super().greedy()
        if min(tokens, default=0) >= 0:
            self._earlier = tokens or self._earlier
            return tokens
        stale = self._earlier or [0]
        return [token if token >= 0 else stale[min(i, len(stale) - 1)] for i, token in enumerate(tokens)]


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


DAMAGE = {"ghost-cell": leave_ghost, "state-ahead": run_ahead}

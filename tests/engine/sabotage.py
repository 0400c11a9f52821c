"""Rollbacks that break on purpose, to see whether judging notices."""

import ctypes
from collections.abc import Sequence
from typing import cast

from mlsd.engine.context import Context
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.native import fail, library
from mlsd.engine.rollback import Rollback


class RunsAhead(Rollback):
    """Right, but after its first rejection the recurrent state has seen one token more than the attention."""

    def __init__(self, inner: Rollback, context: Context) -> None:
        self.name = inner.name
        self._inner, self._context, self._done = inner, context, False

    def mark(self) -> None:
        self._inner.mark()

    def step(self) -> None:
        self._inner.step()

    def rewind(self, n_past: int, replay: Sequence[int]) -> int:
        n_again = self._inner.rewind(n_past, replay)
        if not self._done:
            run_ahead(self._context, replay[-1])
            self._done = True
        return n_again


def run_ahead(context: Context, token: int) -> None:
    """Let the recurrent state take in a token that the attention does not see."""
    broken, native = cast(LlamaContext, context), library()
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

"""A context beside the target, fed with rows of numbers, alone or with tokens; attention memory only.

Drafting heads live in one. Its batches are llama.cpp's extended ones; rows come back through symbols outside llama.h,
so the release is pinned (`_native.extension`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlsd.engine.llama.native import LOG, extension, fail, library, run_pass
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.session import Logits
from mlsd.errors import RollbackError

if TYPE_CHECKING:
    from mlsd.engine.llama.model import LlamaModel

Hidden = npt.NDArray[np.float32]

_N_AXES = 4


class RowContext:
    """One context; sequence 0 holds the text. Close it before the target, whose tensors it may share."""

    # Whether the graph computes outputs for the rows that ask for them. One that computes them for all rows hands out
    # the first rows' in their place, unless all rows of a pass ask, or none.
    _picks_outputs = True

    def __init__(
        self, model: LlamaModel, target: LlamaSession, *, what: str, n_batch: int = 512, n_sequences: int = 1
    ) -> None:
        """Open a context over `model`; `what` names it in errors, `n_batch` is the widest pass."""
        self._native, self._extension = library(), extension()
        self._stack = ExitStack()
        self._model, self._target, self._what = model, target, what
        self._n_batch, self._n_sequences = n_batch, n_sequences
        self.n_past = 0
        self._width = 0
        try:
            self.handle = self._open()
            self._memory: Any = self._native.llama_get_memory(self.handle)
            self._batch: Any = self._native.llama_batch_ext_init(self.handle)
            if not self._memory or not self._batch:
                raise fail(f"llama.cpp has no memory or no batch for {what}")
            self._stack.callback(self._native.llama_batch_ext_free, self._batch)
        except BaseException:
            self._stack.close()
            raise
        self._extension.llama_set_embeddings_nextn(self.handle, True, True)
        self._n_vocab = model.vocabulary.n_tokens
        self.n_embd = int(self._native.llama_model_n_embd(model.handle))

    def _open(self) -> Any:
        native, options = self._native, self._target.options
        params = native.llama_context_default_params()
        params.n_ctx = self._target.n_ctx
        params.n_batch = params.n_ubatch = self._n_batch
        params.n_seq_max = self._n_sequences
        params.kv_unified = self._n_sequences > 1
        params.n_threads = params.n_threads_batch = options.n_threads
        params.ctx_other = self._target.handle
        params.n_rs_seq = 0
        params.no_perf = True
        self._extend(params)
        LOG.drain()
        handle = native.llama_init_from_model(self._model.handle, params)
        if not handle:
            raise fail(f"llama.cpp cannot create a context for {self._what}")
        self._stack.callback(native.llama_free, handle)
        return handle

    def _extend(self, params: Any) -> None:
        """Last changes to the context's parameters."""

    # --- passes ---------------------------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], hidden: Hidden, *, output: bool = True) -> None:
        """Append tokens, each with its row of `hidden`, shape (len(tokens), width); the last one's outputs are kept.

        Without `output` nothing is kept.
        """
        for start in range(0, len(tokens), self._n_batch):
            end = min(start + self._n_batch, len(tokens))
            first_output = len(tokens) - 1 if self._picks_outputs else start
            self._clear_batch()
            for i in range(start, end):
                wanted = output and end == len(tokens) and i >= first_output
                self._add(self.n_past + i - start, tokens[i], hidden[i], output=wanted)
            self._process(end - start)
            self.n_past += end - start

    def _clear_batch(self) -> None:
        self._native.llama_batch_ext_clear(self._batch)

    def _add(self, position: int, token: int | None, row: Hidden | None, *, output: bool, sequence: int = 0) -> None:
        """One position of the next pass; llama.cpp copies the row."""
        native, batch = self._native, self._batch
        if token is None:
            at = native.llama_batch_ext_add(batch, sequence)
        else:
            at = native.llama_batch_ext_add_token(batch, sequence, token)
        done = at >= 0 and native.llama_batch_ext_set_output_logits(batch, at, output)
        if row is not None and done:
            data = np.ascontiguousarray(row, dtype=np.float32)
            pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            done = native.llama_batch_ext_set_embd_token(batch, at, native.llama_embd(pointer, 1, len(data)))
        # Three axes of a rotated position are equal for text; models with one axis read the first.
        axes = (native.llama_pos * _N_AXES)(position, position, position, 0)
        if not done or not native.llama_batch_ext_set_pos(batch, at, axes):
            raise fail(f"llama.cpp refused position {position} for {self._what}")

    def _process(self, width: int, *, encode: bool = False) -> None:
        native = self._native
        kind = native.LLAMA_PROCESS_TYPE_ENCODE if encode else native.LLAMA_PROCESS_TYPE_DECODE
        code = run_pass(native, self.handle, lambda: native.llama_process(self.handle, kind, self._batch))
        if code != 0:
            raise fail(f"A pass of {width} positions through {self._what} failed", code)
        self._width = width

    # --- outputs --------------------------------------------------------------------------------------------------

    def logits(self) -> Logits:
        """Logits after the last position of the last pass, shape (1, n_vocab), valid until the next pass."""
        return self._logits(self._width - 1)[None]

    def greedy(self) -> list[int]:
        """The likeliest token after that position, alone."""
        return [int(self.logits()[0].argmax())]

    def _logits(self, row: int) -> Logits:
        pointer = self._native.llama_get_logits_ith(self.handle, row)
        if not pointer:
            raise fail(f"llama.cpp has no logits of {self._what}")
        return np.ctypeslib.as_array(pointer, shape=(self._n_vocab,))

    def hidden_row(self) -> Hidden:
        """The head's own row after the last position, shape (1, n_embd), a copy: what its next step reads."""
        return self._hidden(self._width - 1)[None].copy()

    def _hidden(self, row: int) -> Hidden:
        pointer = self._extension.llama_get_embeddings_nextn_ith(self.handle, row)
        if not pointer:
            raise fail(f"llama.cpp has no hidden row of {self._what}")
        return np.ctypeslib.as_array(pointer, shape=(self.n_embd,))

    # --- memory ---------------------------------------------------------------------------------------------------

    def truncate(self, n_past: int) -> None:
        """Forget every position >= `n_past`."""
        if n_past < self.n_past:
            self._cut(n_past)
            self.n_past = n_past

    def _cut(self, first: int, sequence: int = -1) -> None:
        """Empty the positions from `first` on, of every sequence or of one."""
        if not self._native.llama_memory_seq_rm(self._memory, sequence, first, -1):
            raise RollbackError(f"llama.cpp cannot cut the memory of {self._what} back to {first}.")

    def clear(self) -> None:
        """Forget everything."""
        self._native.llama_memory_clear(self._memory, True)
        self.n_past = 0

    def close(self) -> None:
        """Free context and batch; calling it twice is harmless."""
        self._stack.close()

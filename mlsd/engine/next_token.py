"""A model's own next-token block (multi-token prediction): a context over the target's weights that reads its rows.

The block takes a token and the row of hidden values that the trunk gave for the position before it, and predicts the
token after. Symbols outside llama.h set and read those rows, so the release is pinned (`_native.extension`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlsd.engine._native import LOG, extension, fail, library
from mlsd.engine.llama import LlamaSession
from mlsd.engine.session import Logits, SessionOptions
from mlsd.engine.threads import default_threads
from mlsd.errors import RollbackError, UnsupportedError

if TYPE_CHECKING:
    from mlsd.engine.llama import LlamaModel

Hidden = npt.NDArray[np.float32]

_N_AXES = 4


class HiddenRowsSession(LlamaSession):
    """A session that also keeps the trunk's hidden row of every position, as the next-token block wants it."""

    def __init__(self, model: LlamaModel, options: SessionOptions) -> None:
        """Open the context.

        Raises: UnsupportedError when the model was loaded without next-token block.
        """
        native = library()
        if not model.has_next_token_block:
            raise UnsupportedError(
                f"{model.path.name} was loaded without next-token block.", hint="Most public GGUFs leave it out."
            )
        self._extension = extension()  # may refuse this release, so before a context is open
        super().__init__(model, options)
        self._extension.llama_set_embeddings_nextn(self.handle, True, False)
        # By position: what a rollback forgets is overwritten when the position is decoded again.
        self.hidden: Hidden = np.zeros((self.n_ctx, int(native.llama_model_n_embd(model.handle))), dtype=np.float32)

    @property
    def model(self) -> LlamaModel:
        """The weights, which the block's context shares."""
        return self._model

    def _submit(self, width: int, what: str) -> None:
        super()._submit(width, what)
        pointer = self._extension.llama_get_embeddings_nextn(self.handle)
        if not pointer:
            raise fail("llama.cpp has no hidden rows for the next-token block")
        n_embd = self.hidden.shape[1]
        self.hidden[self.n_past : self.n_past + width] = np.ctypeslib.as_array(pointer, shape=(width, n_embd))


class NextTokenHead:
    """The block's own context: attention memory of its own, cut back at will."""

    def __init__(self, target: HiddenRowsSession) -> None:
        self._native, self._extension = library(), extension()
        self._stack = ExitStack()
        self._target = target
        self.n_past = 0
        try:
            self._handle = self._open()
            self._batch: Any = self._native.llama_batch_ext_init(self._handle)
            self._stack.callback(self._native.llama_batch_ext_free, self._batch)
        except BaseException:
            self._stack.close()
            raise
        self._memory: Any = self._native.llama_get_memory(self._handle)
        self._extension.llama_set_embeddings_nextn(self._handle, True, True)
        self._n_vocab = target.vocabulary.n_tokens
        self._n_axes = _N_AXES if target.has_position_axes else 1
        self._width = 0

    def _open(self) -> Any:
        native, options = self._native, self._target.options
        params = native.llama_context_default_params()
        params.n_ctx = self._target.n_ctx
        params.n_batch, params.n_ubatch = options.n_batch, options.n_ubatch
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = options.n_threads or default_threads()
        params.ctx_type = native.LLAMA_CONTEXT_TYPE_MTP
        params.ctx_other = self._target.handle
        params.n_rs_seq = 0
        params.no_perf = True
        LOG.drain()
        handle = native.llama_init_from_model(self._target.model.handle, params)
        if not handle:
            raise fail("llama.cpp cannot create a context for the next-token block")
        self._stack.callback(native.llama_free, handle)
        return handle

    def decode(self, tokens: Sequence[int], hidden: Hidden) -> None:
        """Append tokens, each with the hidden row of the position before; the last one's outputs are kept.

        `hidden` has shape (len(tokens), n_embd).
        """
        step = self._target.options.n_ubatch
        for start in range(0, len(tokens), step):
            end = min(start + step, len(tokens))
            self._decode_part(tokens[start:end], hidden[start:end], output=end == len(tokens))

    def _decode_part(self, tokens: Sequence[int], hidden: Hidden, *, output: bool) -> None:
        native, batch, width = self._native, self._batch, len(tokens)
        rows = np.ascontiguousarray(hidden, dtype=np.float32)  # must live until the pass is done
        floats = ctypes.POINTER(ctypes.c_float)
        native.llama_batch_ext_clear(batch)
        for i, token in enumerate(tokens):
            at = native.llama_batch_ext_add_token(batch, 0, token)
            place = self.n_past + i
            axes = (native.llama_pos * _N_AXES)(
                *(place if axis < 3 and axis < self._n_axes else 0 for axis in range(4))
            )
            row = native.llama_embd(rows[i].ctypes.data_as(floats), 1, rows.shape[1])
            done = native.llama_batch_ext_set_pos(batch, at, axes) and native.llama_batch_ext_set_embd_token(
                batch, at, row
            )
            if not done or not native.llama_batch_ext_set_output_logits(batch, at, output and i == width - 1):
                raise fail(f"llama.cpp refused row {i} for the next-token block")
        code = native.llama_process(self._handle, native.LLAMA_PROCESS_TYPE_DECODE, batch)
        if code != 0:
            raise fail(f"A pass of {width} tokens through the next-token block failed", code)
        native.llama_synchronize(self._handle)
        self.n_past += width
        self._width = width

    def logits(self) -> Logits:
        """Logits after the last token, shape (1, n_vocab), valid until the next pass."""
        pointer = self._native.llama_get_logits_ith(self._handle, self._width - 1)
        if not pointer:
            raise fail("llama.cpp has no logits of the next-token block")
        return np.ctypeslib.as_array(pointer, shape=(1, self._n_vocab))

    def hidden_row(self) -> Hidden:
        """The block's own hidden row after the last token, shape (1, n_embd), a copy: what its next step reads."""
        pointer = self._extension.llama_get_embeddings_nextn_ith(self._handle, self._width - 1)
        if not pointer:
            raise fail("llama.cpp has no hidden row of the next-token block")
        return np.ctypeslib.as_array(pointer, shape=(1, self._target.hidden.shape[1])).copy()

    def truncate(self, n_past: int) -> None:
        """Forget every position >= `n_past`."""
        if n_past < self.n_past:
            if not self._native.llama_memory_seq_rm(self._memory, 0, n_past, -1):
                raise RollbackError("llama.cpp cannot cut the next-token block's memory back.")
            self.n_past = n_past

    def clear(self) -> None:
        """Forget everything."""
        self._native.llama_memory_clear(self._memory, True)
        self.n_past = 0

    def close(self) -> None:
        """Free context and batch; calling it twice is harmless."""
        self._stack.close()

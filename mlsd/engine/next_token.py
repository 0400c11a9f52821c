"""A model's own next-token block (multi-token prediction): a context over the target's weights that reads its rows.

The block takes a token and the row of hidden values that the trunk gave for the position before it, and predicts the
token after. Symbols outside llama.h set and read those rows, so the release is pinned (`_native.extension`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlsd.engine._native import extension, fail, library
from mlsd.engine.llama import LlamaSession
from mlsd.engine.row_context import Hidden, RowContext
from mlsd.engine.session import SessionOptions
from mlsd.errors import UnsupportedError

if TYPE_CHECKING:
    from mlsd.engine.llama import LlamaModel


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


class NextTokenHead(RowContext):
    """The block's own context: attention memory of its own, cut back at will."""

    def __init__(self, target: HiddenRowsSession) -> None:
        super().__init__(target.model, target, what="the next-token block", n_batch=target.options.n_ubatch)

    def _extend(self, params: Any) -> None:
        params.ctx_type = self._native.LLAMA_CONTEXT_TYPE_MTP

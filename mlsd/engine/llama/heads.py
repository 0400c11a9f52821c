"""Drafting heads: EAGLE-3 and DFlash from files of their own, and the next-token block of the target itself (MTP).

The first two read the target's rows (`rows`) and may use its embedding table and output matrix. The protocol of each
was read from the graphs and the driver of the pinned release (src/models/eagle3.cpp, src/models/dflash.cpp and
common/speculative.cpp); the checks that keep the library from ending the process are in `gguf_tools.heads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import fail
from mlsd.engine.llama.row_context import Hidden, RowContext
from mlsd.engine.llama.rows import HiddenRowsSession, LayerRowsSession, Rows
from mlsd.engine.session import Logits
from mlsd.engine.tree import ROOT
from mlsd.errors import EngineError

# Rows of one pass. An encoder's pass allots a row of logits for each of them, so this also bounds memory.
_N_BATCH = 128


class EagleHead(RowContext):
    """One block over (token of position P + 1, encoded target row of position P), at position P.

    `encode` turns target rows into the rows that `decode` and `grow` read; a speculative step reads the block's own
    row of the step before in their place.
    """

    _picks_outputs = False

    def __init__(self, model: LlamaModel, target: LayerRowsSession, *, widest_level: int = 0) -> None:
        """Open the head beside the target; a tree needs the width of its widest level."""
        n_sequences = max(1, 2 * widest_level)
        super().__init__(
            model, target, what=model.path.name, n_batch=max(_N_BATCH, widest_level), n_sequences=n_sequences
        )
        self._n_levels = self._n_shared = 0
        self._level_rows: Hidden = np.zeros((0, self.n_embd), dtype=np.float32)

    def encode(self, rows: Rows) -> Hidden:
        """The head's input rows for target rows, shape (n, 3 * target width) -> (n, n_embd); memory stays as it is."""
        encoded = np.empty((len(rows), self.n_embd), dtype=np.float32)
        for start in range(0, len(rows), self._n_batch):
            part = rows[start : start + self._n_batch]
            self._clear_batch()
            for i, row in enumerate(part):
                self._add(self.n_past + i, None, row, output=True)  # the encoder has no positions; these are free
            self._process(len(part), encode=True)
            for i in range(len(part)):
                encoded[start + i] = self._hidden(i)
        return encoded

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """One more level of a tree below the text; see `LlamaTreeSession.grow`, which this repeats for heads.

        The first level follows the last `decode`. Returns the logits after each token, shape (len(tokens), n_vocab).
        """
        width, half = len(tokens), self._n_sequences // 2
        if width > half:
            raise EngineError(f"A level of {width} nodes needs {2 * width} sequences, there are {2 * half}.")
        base, depth = self.n_past, self._n_levels
        if depth == 0:
            self._level_rows = self.hidden_row()
            self._share()
        # Levels take turns with the two halves of the sequences, so that parents are still there to copy from.
        first, before = (0, half) if depth % 2 == 0 else (half, 0)
        for i, parent in enumerate(parents if depth else ()):
            self._cut(base, first + i)
            self._native.llama_memory_seq_cp(self._memory, before + parent, first + i, base, base + depth)
        self._clear_batch()
        for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            row = self._level_rows[0 if parent == ROOT else parent]
            self._add(base + depth, token, row, output=True, sequence=first + i)
        self._process(width)
        self._level_rows = np.stack([self._hidden(i) for i in range(width)])
        self._n_levels = depth + 1
        return np.stack([self._logits(i) for i in range(width)])

    def _share(self) -> None:
        """Let every sequence hold the text."""
        for sequence in range(1, self._n_sequences):
            self._native.llama_memory_seq_cp(self._memory, 0, sequence, self._n_shared, self.n_past)
        self._n_shared = self.n_past

    def truncate(self, n_past: int) -> None:
        """Forget every position >= `n_past` and all levels of a tree."""
        if n_past < self.n_past or self._n_levels:
            self._cut(min(n_past, self.n_past))
        self.n_past = min(n_past, self.n_past)
        self._n_shared = min(self._n_shared, self.n_past)
        self._n_levels = 0

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._n_levels = self._n_shared = 0


class BlockHead(RowContext):
    """DFlash: fills a block of masked positions in one pass, looking at target rows put into its memory.

    The positions of a block see each other, unless the file says that its attention is causal.
    """

    def __init__(self, model: LlamaModel, target: LayerRowsSession, *, causal: bool, widest_block: int) -> None:
        """Open the head beside the target."""
        super().__init__(model, target, what=model.path.name, n_batch=max(_N_BATCH, widest_block))
        self._native.llama_set_causal_attn(self.handle, causal)

    def inject(self, rows: Rows) -> None:
        """Append target rows, shape (n, layers * target width), to the memory; one position each."""
        for start in range(0, len(rows), self._n_batch):
            part = rows[start : start + self._n_batch]
            self._clear_batch()
            for i, row in enumerate(part):
                self._add(self.n_past + i, None, row, output=False)
            self._process(len(part))
            self.n_past += len(part)

    def fill(self, last: int, mask: int, n_rows: int) -> Logits:
        """Logits of a block of `n_rows` positions: the newest token, then masks; shape (n_rows, n_vocab).

        The block leaves the memory again.
        """
        self._fill(last, mask, n_rows, output=True)
        return np.stack([self._logits(i) for i in range(n_rows)])

    def select(self, last: int, mask: int, n_rows: int, n_candidates: int) -> tuple[int, ...]:
        """The tokens that a DFlash2 head chooses for the masks of such a block: the best next one, step by step.

        For each position its graph gives `n_candidates` tokens and their scores after each candidate of the position
        before; the first masked one comes after the newest token, whatever the candidate.
        """
        # The graph hands the candidates out in place of a row for every position, none of which asks for logits.
        self._extension.llama_set_embeddings_nextn(self.handle, True, False)
        self._fill(last, mask, n_rows, output=False)
        pointer = self._extension.llama_get_embeddings_nextn(self.handle)
        if not pointer:
            raise fail(f"llama.cpp has no candidates of {self._what}")
        rows = np.ctypeslib.as_array(pointer, shape=(n_rows, self.n_embd))[1:]
        tokens, best = [], 0
        for row in rows:
            scores = row[n_candidates : n_candidates * (n_candidates + 1)].reshape(n_candidates, n_candidates)
            best = int(scores[best].argmax())
            tokens.append(int(row[best]))
        return tuple(tokens)

    def _fill(self, last: int, mask: int, n_rows: int, *, output: bool) -> None:
        self._clear_batch()
        for i in range(n_rows):
            self._add(self.n_past + i, mask if i else last, None, output=output)
        self._process(n_rows)
        self._cut(self.n_past)


class NextTokenHead(RowContext):
    """The block's own context: attention memory of its own, cut back at will."""

    def __init__(self, target: HiddenRowsSession) -> None:
        super().__init__(target.model, target, what="the next-token block", n_batch=target.options.n_ubatch)

    def _extend(self, params: Any) -> None:
        params.ctx_type = self._native.LLAMA_CONTEXT_TYPE_MTP

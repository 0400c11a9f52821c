"""Drafting heads: EAGLE-3 and DFlash from files of their own, and the next-token block of the target itself (MTP).

The protocols were read from src/models/eagle3.cpp, src/models/dflash.cpp and common/speculative.cpp of the pinned
release, which alone is used (`native.extension`): rows come back through symbols outside llama.h.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LOG, extension, fail, library
from mlsd.engine.llama.rows import Rows
from mlsd.engine.llama.trees import LevelSequences
from mlsd.engine.tree import ROOT

# Rows of one pass. An encoder's pass allots a row of logits for each of them, so this also bounds memory.
_N_BATCH = 128
_N_AXES = 4


class RowContext:
    """A context beside the target, whose tensors it may share: close it first. Sequence 0 holds the text."""

    # Whether the graph computes outputs for the rows that ask for them. One that computes them for all rows hands out
    # the first rows' in their place, unless all rows of a pass ask, or none.
    _picks_outputs = True

    def __init__(
        self, model: LlamaModel, target: LlamaContext, *, n_batch: int = _N_BATCH, n_sequences: int = 1,
        next_token: bool = False,
    ) -> None:  # fmt: skip
        """Open a context over `model`, whose widest pass is `n_batch`; `next_token`: over the block inside it."""
        self._native, self._extension = library(), extension()
        of_target = target.options
        options = ContextOptions(
            n_ctx=target.n_ctx, n_batch=n_batch, n_ubatch=n_batch, max_outputs=n_batch, n_sequences=n_sequences,
            n_threads=of_target.n_threads, n_gpu_layers=of_target.n_gpu_layers, device_sampling=False,
        )  # fmt: skip

        def beside_target(params: Any) -> None:
            params.ctx_other = target.handle
            if next_token:
                params.ctx_type = self._native.LLAMA_CONTEXT_TYPE_MTP

        self._what = "the next-token block" if next_token else model.path.name
        self._context = LlamaContext(model, options, beside_target)
        self._batch: Any = self._native.llama_batch_ext_init(self._context.handle)
        if not self._batch:
            self._context.close()
            raise fail(f"llama.cpp has no batch for {self._what}")
        self._context.on_close(self._native.llama_batch_ext_free, self._batch)
        self._extension.llama_set_embeddings_nextn(self._context.handle, True, True)
        self.n_past = self._width = 0
        self._n_batch, self.n_embd = n_batch, int(self._native.llama_model_n_embd(model.handle))

    # --- passes ---------------------------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], hidden: Rows, *, output: bool = True) -> None:
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

    def _add(self, position: int, token: int | None, row: Rows | None, *, output: bool, sequence: int = 0) -> None:
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
        native, n_errors = self._native, LOG.n_errors
        kind = native.LLAMA_PROCESS_TYPE_ENCODE if encode else native.LLAMA_PROCESS_TYPE_DECODE
        if code := native.llama_process(self._context.handle, kind, self._batch):
            raise fail(f"A pass of {width} positions through {self._what} failed", code)
        self._context.wait(n_errors)
        self._width = width

    # --- outputs --------------------------------------------------------------------------------------------------

    def logits(self) -> Logits:
        """Logits after the last position of the last pass, shape (1, n_vocab), valid until the next pass."""
        return self._context.output_row(self._width - 1)[None]

    def greedy(self) -> list[int]:
        return [int(self.logits()[0].argmax())]

    def hidden_row(self) -> Rows:
        """The head's own row after the last position, shape (1, n_embd), a copy: what its next step reads."""
        return self._hidden(self._width - 1)[None].copy()

    def _hidden(self, row: int) -> Rows:
        pointer = self._extension.llama_get_embeddings_nextn_ith(self._context.handle, row)
        if not pointer:
            raise fail(f"llama.cpp has no hidden row of {self._what}")
        return np.ctypeslib.as_array(pointer, shape=(self.n_embd,))

    # --- memory ---------------------------------------------------------------------------------------------------

    def truncate(self, n_past: int) -> None:
        if n_past < self.n_past:
            self._context.cut(-1, n_past)
            self.n_past = n_past

    def clear(self) -> None:
        self._context.clear()
        self.n_past = 0

    def close(self) -> None:
        self._context.close()


class EagleHead(RowContext):
    """One block over (token of position P + 1, encoded target row of P), at position P.

    `encode` makes rows for `decode` and `grow`; a speculative step reads the block's own row of the step before.
    """

    _picks_outputs = False

    def __init__(self, model: LlamaModel, target: LlamaContext, *, widest_level: int = 0) -> None:
        super().__init__(model, target, n_batch=max(_N_BATCH, widest_level), n_sequences=max(1, 2 * widest_level))
        self._levels, self._n_shared = LevelSequences(self._context), 0
        self._level_rows: Rows = np.zeros((0, self.n_embd), dtype=np.float32)

    def encode(self, rows: Rows) -> Rows:
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
        """As `LlamaTreeContext.grow`; the first level follows the last `decode`."""
        width = len(tokens)
        if not self._levels.n_levels:
            self._level_rows = self.hidden_row()
            self._share()
        first, position = self._levels.add(self.n_past, parents)
        self._clear_batch()
        for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            row = self._level_rows[0 if parent == ROOT else parent]
            self._add(position, token, row, output=True, sequence=first + i)
        self._process(width)
        self._level_rows = np.stack([self._hidden(i) for i in range(width)])
        return np.stack([self._context.output_row(i) for i in range(width)])

    def _share(self) -> None:
        for sequence in range(1, self._context.options.n_sequences):
            self._native.llama_memory_seq_cp(self._context.memory, 0, sequence, self._n_shared, self.n_past)
        self._n_shared = self.n_past

    def truncate(self, n_past: int) -> None:
        if n_past < self.n_past or self._levels.n_levels:
            self._context.cut(-1, min(n_past, self.n_past))
        self.n_past = min(n_past, self.n_past)
        self._n_shared = min(self._n_shared, self.n_past)
        self._levels.n_levels = 0

    def clear(self) -> None:
        super().clear()
        self._levels.n_levels = self._n_shared = 0


class BlockHead(RowContext):
    """DFlash: fills a block of masked positions, which see each other unless attention is causal, in one pass."""

    def __init__(self, model: LlamaModel, target: LlamaContext, *, causal: bool, widest_block: int) -> None:
        super().__init__(model, target, n_batch=max(_N_BATCH, widest_block))
        self._native.llama_set_causal_attn(self._context.handle, causal)

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
        """Logits of a block of the newest token and masks, shape (n_rows, n_vocab); it leaves the memory again."""
        self._fill(last, mask, n_rows, output=True)
        return np.stack([self._context.output_row(i) for i in range(n_rows)])

    def select(self, last: int, mask: int, n_rows: int, n_candidates: int) -> tuple[int, ...]:
        """The tokens that a DFlash2 head chooses for the masks of such a block: the best next one, step by step.

        For each position its graph gives `n_candidates` tokens and their scores after each candidate of the position
        before; the first masked one comes after the newest token, whatever the candidate.
        """
        # The graph hands the candidates out in place of a row for every position, none of which asks for logits.
        self._extension.llama_set_embeddings_nextn(self._context.handle, True, False)
        self._fill(last, mask, n_rows, output=False)
        pointer = self._extension.llama_get_embeddings_nextn(self._context.handle)
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
        self._context.cut(-1, self.n_past)


class NextTokenHead(RowContext):
    """The block's own context: attention memory of its own, cut back at will."""

    def __init__(self, target: LlamaContext) -> None:
        super().__init__(target.model, target, n_batch=target.options.n_ubatch, next_token=True)

    def decode(self, tokens: Sequence[int], hidden: Rows, *, output: bool = True) -> None:
        """The same; a last token whose outputs are kept has a pass of its own, as in llama.cpp.

        Of a pass with several tokens the graphs of most blocks hand out the first one's row in place of the last one's.
        """
        if output and len(tokens) > 1:
            super().decode(tokens[:-1], hidden[:-1], output=False)
            tokens, hidden = tokens[-1:], hidden[-1:]
        super().decode(tokens, hidden, output=output)

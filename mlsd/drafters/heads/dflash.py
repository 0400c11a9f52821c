"""DFlash: a head that fills a block of masks, after the newest token, in one pass over the target's rows.

No masked position knows the others' choice. A DSpark head (with a Markov head) corrects each by the likeliest token of
the one before, inside its graph; a DFlash2 head scores pairs of neighbours, and the best next token is taken step by
step. mlsd has run heads of random weights only, and refuses those of the DeepSeek-V4 kind (`gguf_tools.heads`).
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.heads.head import HeadOptions, check_head, open_head
from mlsd.drafters.method import DrafterSetup, drafting_method
from mlsd.drafters.options import Range
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.heads import BlockHead
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.verify import Proposal, Verification, draw, probabilities
from mlsd.gguf_tools.heads import DraftingHead
from mlsd.gguf_tools.source import Source
from mlsd.records import Sampling


class BlockDraft(Drafter):
    """Blocks of tokens from the head, each in one pass."""

    rollback_name = "trim"
    # Passes over a block, the time of all passes, and of it what putting rows into the memory cost.
    counted = ("draft_steps", "injected_rows", "inject_ns", "draft_forward_ns")

    def __init__(
        self, target: LlamaContext, context: BlockHead, head: DraftingHead, clock: Clock, sampling: Sampling
    ) -> None:
        self._target_rows, self._context, self._head = target.layer_rows, context, head
        self._clock, self._sampling = clock, sampling
        self.begin((), np.random.default_rng(0))

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Forget the last text; the prompt's rows go in when the target has made them, in `observe`."""
        self._context.clear()
        self._rng, self._text = rng, list(prompt)
        self._tally = dict.fromkeys(self.counted, 0.0)

    def propose(self, k: int) -> Proposal:
        now = self._clock.now_ns
        t0 = now()
        self._tally["injected_rows"] += self._inject(len(self._text) - 1)
        t1 = now()
        self._tally["inject_ns"] += t1 - t0
        draft = self._block(min(k, self._head.longest))
        self._tally["draft_steps"] += 1
        self._tally["draft_forward_ns"] += now() - t0
        return draft

    def _block(self, k: int) -> Proposal:
        head, last = self._head, self._text[-1]
        if head.n_candidates:
            return Proposal(tokens=self._context.select(last, head.mask, k + 1, head.n_candidates))
        first = 0 if head.from_anchor else 1  # the row of the first proposal
        logits = self._context.fill(last, head.mask, k + first)[first:]
        if self._sampling.greedy:
            return Proposal(tokens=tuple(logits.argmax(axis=1).tolist()))
        rows = probabilities(logits, self._sampling)
        return Proposal(tokens=tuple(draw(row, self._rng) for row in rows), probabilities=rows)

    def _inject(self, end: int) -> int:
        """Put the target's rows of the positions before `end` into the memory; returns how many were new."""
        first = self._context.n_past
        self._context.inject(self._target_rows.rows[first:end])
        return end - first

    def observe(self, verification: Verification) -> None:
        """Take in the rows of the prompt once they are there; rows of later tokens wait for the next proposal."""
        if self._context.n_past == 0:
            self._inject(len(self._text))
        self._text.extend(verification.committed)

    def stats(self) -> dict[str, float]:
        return dict(self._tally)

    def close(self) -> None:
        self._context.close()


@drafting_method(
    "dflash",
    summary="Drafting with a DFlash head: a whole block of tokens in one pass.",
    source="llama.cpp's DFlash, DFlash2 and DSpark heads (src/models/dflash.cpp)",
    space={"gamma": Range(low=1, high=15)},
    needs="head",
    target_kind="layer-rows",
)
class DflashOptions(HeadOptions, frozen=True, kw_only=True):
    """A block takes no options."""

    architecture: ClassVar[str] = "dflash"

    def open(self, setup: DrafterSetup) -> BlockDraft:
        model, head = open_head(setup, "dflash")
        return BlockDraft(setup.target, self.head(setup.target, model), head, setup.clock, setup.opening.case.sampling)

    def head(self, target: LlamaContext, model: LlamaModel) -> BlockHead:
        head = check_head("dflash", Source(target.model.path), Source(model.path))
        widest = min(target.options.max_outputs, head.n_block)
        return BlockHead(model, target, causal=head.causal, widest_block=widest)

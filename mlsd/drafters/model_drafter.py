"""Drafting with a model that reads the text as it grows: what it has read of it, and a chain that continues it.

The first pass of a round reads the newest committed tokens and gives the first proposal, so catching up costs no pass
of its own. The mark lies right after that pass: all that memory then holds is confirmed.
"""

from collections.abc import Sequence
from statistics import median
from typing import Protocol

import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain, Predictor
from mlsd.drafters.method import DrafterSetup, Read
from mlsd.engine.context import Context
from mlsd.engine.drafter import Drafter
from mlsd.engine.rollback import Rollback
from mlsd.engine.verify import Proposal, Verification


class Reader(Predictor, Protocol):
    """A context that text is read into, position by position."""

    @property
    def n_past(self) -> int:
        """Positions that it has read."""

    def clear(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Free every native handle."""


class DraftMemory:
    """The text and what a model has read of it; passes and rollbacks are counted and timed from `begin` on."""

    rollback_name = "trim"
    failed_native_calls = 0
    # Passes, positions read to catch up, and the time of all passes.
    counted: tuple[str, ...] = ("draft_steps", "catch_up_rows", "draft_forward_ns")

    def __init__(self, model: Reader, clock: Clock) -> None:
        self.model, self._now = model, clock.now_ns
        self._forget()

    def _forget(self, text: Sequence[int] = ()) -> None:
        self.text = list(text)
        self.tally, self.rollback_ns = dict.fromkeys(self.counted, 0.0), 0
        self.single_ns: list[int] = []  # of each pass over one token

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the last text and take in a prompt."""
        self.model.clear()
        self._forget(prompt)

    def news(self) -> list[int]:
        """The committed tokens that the model has not read."""
        news = self.text[self.model.n_past :]
        self.tally["catch_up_rows"] += len(news)
        return news

    def mark(self) -> None:
        """What was read so far is confirmed, what is read from now on is proposed."""

    def step(self) -> None:
        """One more proposal is about to be read."""

    def read(self, tokens: Sequence[int]) -> None:
        """Read the next tokens in one pass; the last one's outputs are there then."""
        raise NotImplementedError

    def _count(self, n_tokens: int, span_ns: int) -> None:
        self.tally["draft_steps"] += 1
        self.tally["draft_forward_ns"] += span_ns
        if n_tokens == 1:
            self.single_ns.append(span_ns)

    def observe(self, verification: Verification) -> None:
        """Forget rejected proposals; the newest committed tokens wait for the next pass."""
        raise NotImplementedError

    def stats(self) -> dict[str, float]:
        """What was counted, and T_draft(1): the median pass over one token."""
        return self.tally | ({"draft_step_ns": float(median(self.single_ns))} if self.single_ns else {})


class OwnMemory(DraftMemory):
    """A draft model's own context, whose strategy takes back what was rejected."""

    pass_bytes: int | None = None  # weights that a pass over one token reads, where the draft is made of its target

    def __init__(self, context: Context, rollback: Rollback, clock: Clock, read: Read = DrafterSetup.read) -> None:
        """`read` brings the prompt into the context."""
        self._context, self._rollback, self._read_prompt = context, rollback, read
        self._n_vocab, self.rollback_name = context.tokenizer.vocabulary.n_tokens, rollback.name
        super().__init__(context, clock)

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(())
        self._take_in(prompt)
        self._read_prompt(self._context, self.text)

    def _take_in(self, tokens: Sequence[int]) -> None:
        """What only its target's larger vocabulary has becomes token 0."""
        self.text += tokens if max(tokens) < self._n_vocab else [t if t < self._n_vocab else 0 for t in tokens]

    def mark(self) -> None:
        started_ns = self._now()
        self._rollback.mark()
        self.rollback_ns += self._now() - started_ns

    def step(self) -> None:
        started_ns = self._now()
        self._rollback.step()
        self.rollback_ns += self._now() - started_ns

    def read(self, tokens: Sequence[int]) -> None:
        started_ns = self._now()
        self._context.decode(tokens)
        self._count(len(tokens), self._now() - started_ns)

    def observe(self, verification: Verification) -> None:
        n_valid = len(self.text) + verification.accepted
        self._take_in(verification.committed)
        if n_valid < self._context.n_past:
            started_ns = self._now()
            self._rollback.rewind(n_valid, ())
            self.rollback_ns += self._now() - started_ns

    @property
    def failed_native_calls(self) -> int:  # type: ignore[override]
        return self._context.failed_native_calls

    def stats(self) -> dict[str, float]:
        """The same, with the time of marking and rewinding."""
        stats = {**super().stats(), "draft_rollback_ns": float(self.rollback_ns)}
        if self.pass_bytes is not None:
            stats["draft_read_bytes"] = self.pass_bytes * self.tally["draft_steps"]
        return stats


class ModelDrafter(Drafter):
    """Drafts with a model from what it has read; subclasses say in which shape."""

    def __init__(self, memory: DraftMemory) -> None:
        self.memory, self.rollback_name = memory, memory.rollback_name

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self.memory.begin(prompt)

    def observe(self, verification: Verification) -> None:
        self.memory.observe(verification)

    @property
    def failed_native_calls(self) -> int:
        return self.memory.failed_native_calls

    def close(self) -> None:
        self.memory.model.close()


class ChainDrafter(ModelDrafter):
    """A chain of tokens, each but the first from a pass over the one before."""

    def __init__(self, memory: DraftMemory, chain: Chain) -> None:
        super().__init__(memory)
        self._chain = chain

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._chain.begin(rng)
        self.memory.begin(prompt)

    def propose(self, k: int) -> Proposal:
        memory, chain = self.memory, self._chain
        before_ns = memory.rollback_ns
        memory.read(memory.news())
        if k > 1:  # with one proposal nothing but confirmed tokens enters the memory
            memory.mark()
        chain.start(k)
        while chain.extend(memory.model):
            memory.step()
            memory.read(chain.tokens[-1:])
        return chain.proposal(memory.rollback_ns - before_ns)

    def stats(self) -> dict[str, float]:
        return {**self._chain.stats(), **self.memory.stats()}

"""What methods share that look proposals up in text, without a model: how often they found some, what looking cost."""

from collections.abc import Sequence

import numpy as np

from mlsd.clock import Clock
from mlsd.engine.drafter import Drafter
from mlsd.engine.verify import Proposal, Verification


class TextLookup(Drafter):
    """A look-up in a text that grows; its newest tokens wait for the next proposal, which pays for taking them in."""

    # Rounds with and without a proposal, and the time spent on either.
    counted: tuple[str, ...] = ("match_rounds", "no_match_rounds", "match_propose_ns", "no_match_propose_ns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        """Empty the text and what is known of it, and count anew."""
        self._pending: list[int] = []
        self._tally = dict.fromkeys(self.counted, 0.0)

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._forget()
        self._take_in(prompt)

    def propose(self, k: int) -> Proposal:
        started_ns = self._clock.now_ns()
        self._take_in(self._pending)
        self._pending = []
        draft = self._look_up(k)
        outcome = "match" if draft.n_proposed else "no_match"
        self._tally[f"{outcome}_rounds"] += 1
        self._tally[f"{outcome}_propose_ns"] += self._clock.now_ns() - started_ns
        return draft

    def _take_in(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""

    def _look_up(self, k: int) -> Proposal:
        raise NotImplementedError

    def observe(self, verification: Verification) -> None:
        self._pending.extend(verification.committed)

    def stats(self) -> dict[str, float]:
        return dict(self._tally)

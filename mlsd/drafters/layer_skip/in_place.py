"""Self-speculation inside the target: one memory, one context, blocks bridged while a draft pass runs.

The whole network is computed for every draft token, so its times say nothing about the method; its acceptance does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlsd.drafters.chain import Chain
from mlsd.engine.drafter import Draft, Drafter, Outcome
from mlsd.engine.llama.taps import Tap, TappedSession


class InPlaceDraft(Drafter):
    """Drafts on the target's own session, which counts its own failures, under a tap; leaves its memory as it was."""

    rollback_name = "inplace"
    timed = False

    def __init__(self, session: TappedSession, tap: Tap, chain: Chain, *, recurrent: bool) -> None:
        """`recurrent`: the target has memory that cannot be cut and must be saved before a draft."""
        self.tap = tap
        self._session = session
        self._chain, self._recurrent = chain, recurrent
        self._last = 0
        self._n_steps = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Nothing to read: the memory is the target's."""
        self._chain.begin(rng)
        self._n_steps = 0

    def propose(self, k: int) -> Draft:
        """Up to `k` tokens, each from a pass with the blocks bridged."""
        session, n_past = self._session, self._session.n_past
        if self._recurrent:
            session.save_state()
        with session.tapped(self.tap):
            self._forward((self._last,))
            tokens, rows = self._chain.grow(k, session, self._forward)
        if self._recurrent:
            session.load_state()
        session.truncate(n_past)
        return Draft(tokens=tokens, probabilities=rows)

    def _forward(self, tokens: Sequence[int]) -> None:
        self._session.decode(tokens)
        self._n_steps += 1

    def observe(self, outcome: Outcome) -> None:
        """Remember the newest token."""
        if outcome.committed:
            self._last = outcome.committed[-1]

    def stats(self) -> dict[str, float]:
        """Draft passes, and how often they ended in doubt; what they took is not the method's."""
        stops = {name: value for name, value in self._chain.stats().items() if not name.endswith("_ns")}
        return {**stops, "draft_steps": float(self._n_steps)}

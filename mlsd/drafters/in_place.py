"""Self-speculation inside the target: one memory, one context, blocks bridged while a draft pass runs.

The whole network is computed for every draft token, so its times say nothing about the method; its acceptance does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlsd.engine.drafter import Draft, Outcome
from mlsd.engine.taps import Tap, TappedSession
from mlsd.engine.verify import Probabilities, draw, probabilities
from mlsd.records import Sampling


class InPlaceDraft:
    """Drafts on the target's own session under a tap and leaves its memory as it was."""

    name = "layer-skip"
    rollback_name: str | None = "inplace, not timed"
    failed_native_calls = 0  # the session is the target's, which counts its own

    def __init__(self, session: TappedSession, tap: Tap, *, recurrent: bool, sampling: Sampling) -> None:
        """`recurrent`: the target has memory that cannot be cut and must be saved before a draft."""
        self.tap = tap
        self._session = session
        self._sampling, self._recurrent = sampling, recurrent
        self._rng = np.random.default_rng(0)
        self._last = 0
        self._n_steps = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Nothing to read: the memory is the target's."""
        self._rng, self._n_steps = rng, 0

    def propose(self, k: int) -> Draft:
        """Up to `k` tokens, each from a pass with the blocks bridged."""
        session, n_past = self._session, self._session.n_past
        if self._recurrent:
            session.save_state()
        tokens: list[int] = []
        rows: list[Probabilities] = []
        with session.tapped(self.tap):
            while len(tokens) < k:
                session.decode((tokens[-1] if tokens else self._last,))
                if self._sampling.greedy:
                    tokens += session.greedy()
                else:
                    rows.append(probabilities(session.logits(), self._sampling)[0])
                    tokens.append(draw(rows[-1], self._rng))
        if self._recurrent:
            session.load_state()
        session.truncate(n_past)
        self._n_steps += k
        return Draft(tokens=tuple(tokens), probabilities=np.stack(rows) if rows else None)

    def observe(self, outcome: Outcome) -> None:
        """Remember the newest token."""
        if outcome.committed:
            self._last = outcome.committed[-1]

    def stats(self) -> dict[str, float]:
        """Draft passes; ``timed`` 0 says that the times of this trial are not the method's."""
        return {"draft_steps": float(self._n_steps), "timed": 0.0}

    def close(self) -> None:
        """The session belongs to the target."""

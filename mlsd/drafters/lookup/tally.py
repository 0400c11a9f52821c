"""What methods share that look proposals up in the text so far: how often they found some, and what looking cost."""

from __future__ import annotations

from mlsd.engine.drafter import Outcome


class ProposalTally:
    """Counts and times of one generation."""

    def __init__(self) -> None:
        self._rounds = {True: 0, False: 0}
        self._spent_ns = {True: 0, False: 0}

    def add(self, found: bool, spent_ns: int) -> None:
        """One round's look-up."""
        self._rounds[found] += 1
        self._spent_ns[found] += spent_ns

    def stats(self) -> dict[str, float]:
        """Under the names that trials carry."""
        return {
            "match_rounds": float(self._rounds[True]),
            "no_match_rounds": float(self._rounds[False]),
            "match_propose_ns": float(self._spent_ns[True]),
            "no_match_propose_ns": float(self._spent_ns[False]),
        }


class TextLookup:
    """A method without a model; the newest tokens wait for the next proposal, which pays for taking them in."""

    rollback_name: str | None = None
    failed_native_calls = 0

    def __init__(self) -> None:
        self._tally = ProposalTally()
        self._pending: list[int] = []

    def observe(self, outcome: Outcome) -> None:
        """Keep the committed tokens."""
        self._pending.extend(outcome.committed)

    def stats(self) -> dict[str, float]:
        """Rounds with and without a proposal, and the time spent on either."""
        return self._tally.stats()

    def close(self) -> None:
        """Nothing to free."""

"""How often a method that looks proposals up found something, and what looking cost in either case."""

from __future__ import annotations


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

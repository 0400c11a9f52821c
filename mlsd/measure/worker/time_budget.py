"""How long a measurement may go on: asked between native calls, so that the last one may end late and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlsd.clock import Clock


class TimeBudget:
    """A span of time that began when this was made; without `span_ns` it never ends."""

    def __init__(self, clock: Clock, span_ns: int | None = None) -> None:
        self._clock, self.span_ns = clock, span_ns
        self._begin_ns = clock.now_ns()
        self._end_ns = None if span_ns is None else self._begin_ns + span_ns

    @property
    def spent_ns(self) -> int:
        return self._clock.now_ns() - self._begin_ns

    @property
    def is_over(self) -> bool:
        return self._end_ns is not None and self._clock.now_ns() >= self._end_ns

    def has(self, span_ns: float) -> bool:
        return self._end_ns is None or self._clock.now_ns() + span_ns < self._end_ns

    def part(self, share: float) -> TimeBudget:
        """A budget that begins now: `share` of this one's whole span, at most what is left of it."""
        if self.span_ns is None or self._end_ns is None:
            return TimeBudget(self._clock)
        left_ns = max(0, self._end_ns - self._clock.now_ns())
        return TimeBudget(self._clock, min(int(share * self.span_ns), left_ns))

    def fraction(self, share: float) -> TimeBudget:
        """A budget that begins now: `share` of what is left of this one."""
        if self._end_ns is None:
            return TimeBudget(self._clock)
        return TimeBudget(self._clock, int(share * max(0, self._end_ns - self._clock.now_ns())))


class Ledger:
    """What each part of a measurement took, in ns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.spent_ns: dict[str, int] = {}

    @contextmanager
    def entry(self, part: str) -> Iterator[None]:
        """Book what happens inside under `part`."""
        began = self._clock.now_ns()
        try:
            yield
        finally:
            self.spent_ns[part] = self.spent_ns.get(part, 0) + self._clock.now_ns() - began

"""The monotonic clock of every measurement, and a fake one whose time moves only when told."""

from __future__ import annotations

import time
from typing import Protocol

from mlsd.units import NS_PER_S


class Clock(Protocol):
    """A monotonic clock in nanoseconds."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary, fixed moment."""


class RestClock(Clock, Protocol):
    """A clock that its owner can also wait by."""

    def sleep(self, span_s: float) -> None:
        """Return when so many seconds have passed."""


class MonotonicClock:
    """The process-wide performance counter."""

    def now_ns(self) -> int:
        """`time.perf_counter_ns`."""
        return time.perf_counter_ns()

    def sleep(self, span_s: float) -> None:
        """`time.sleep`."""
        time.sleep(span_s)


class FakeClock:
    """A clock that a test or the fake session moves forward; it never runs by itself."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """The time set so far."""
        return self._now_ns

    def advance(self, span_ns: int) -> None:
        """Move time forward by `span_ns` (>= 0)."""
        if span_ns < 0:
            raise ValueError(f"a clock cannot go back ({span_ns} ns)")
        self._now_ns += span_ns

    def sleep(self, span_s: float) -> None:
        """Move time forward."""
        self.advance(round(span_s * NS_PER_S))

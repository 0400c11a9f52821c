"""The monotonic clock of every measurement."""

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in nanoseconds."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary, fixed moment."""

    def sleep(self, span_s: float) -> None:
        """Return when so many seconds have passed."""


class MonotonicClock:
    """The process-wide performance counter."""

    now_ns = staticmethod(time.perf_counter_ns)  # called several times a token, so without a frame of its own

    def sleep(self, span_s: float) -> None:
        time.sleep(span_s)

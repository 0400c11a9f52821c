"""Small pure statistics: medians, spreads, and the paired speedup with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from mlsd.records import Record


class Interval(Record, frozen=True, kw_only=True):
    """An estimate with its 95 % confidence interval; bounds are None when one sample cannot give any."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1

    def decided(self, against: float = 1.0) -> bool | None:
        """Whether the interval excludes `against`; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= against <= self.high


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None


def relative_spread(values: Sequence[float]) -> float | None:
    """Half the range over the median: what to expect of the next repeat. None for fewer than two values."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / 2 / statistics.median(values)


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95) -> Interval:
    """Geometric mean of pairwise ratios with Student's t interval of the mean log ratio.

    r_i = ln(x_i / y_i);  ratio = exp(mean r);  interval = exp(mean r -+ t_{(1+c)/2, n-1} * sd(r) / sqrt(n)).

    Pairs come from one block each, so what both arms share (heat, load) cancels. With the few blocks of a bench the
    t interval keeps its promise, which a bootstrap over three values does not. n = 1 gives no interval.
    Source: Student 1908; the log makes a ratio and its inverse equally far from one.
    """
    logs = [math.log(x / y) for x, y in zip(numerators, denominators, strict=True)]
    n = len(logs)
    centre = statistics.fmean(logs)
    if n < 2:
        return Interval(value=math.exp(centre), n=n)
    from scipy.stats import t  # half a second of import that `mlsd --help` must not pay

    half = float(t.ppf((1 + confidence) / 2, n - 1)) * statistics.stdev(logs) / math.sqrt(n)
    return Interval(value=math.exp(centre), low=math.exp(centre - half), high=math.exp(centre + half), n=n)

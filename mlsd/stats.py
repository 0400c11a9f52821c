"""Small pure statistics: medians, spreads, groups, how trials pair, the one interval, and what it decides."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import TypeVar

from mlsd.errors import AnalysisError
from mlsd.records import Record

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_TAIL = 0.025  # what each end of a 95 % interval may miss
POWER = 0.8
_SAYS_LITTLE = 10.0  # ends of a ratio's interval so many times apart: [0.1, 6] is no finding
LEAST_FOR_POWER = 4  # groups


class Interval(Record, frozen=True, kw_only=True):
    """An estimate with its 95 % confidence interval; bounds are None when one sample cannot give any."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1

    @property
    def says_little(self) -> bool:
        """Of a ratio: whether its ends are so far apart that only their number of blocks is worth saying."""
        return self.low is not None and self.high is not None and self.high > _SAYS_LITTLE * self.low

    def decided(self, against: float = 1.0) -> bool | None:
        """Whether the interval excludes `against`; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= against <= self.high


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None


class Percentiles(Record, frozen=True, kw_only=True):
    """Of some values, the smallest that so many per cent do not exceed (nearest rank)."""

    p50: float
    p90: float
    p99: float
    n: int


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """None of nothing. The 99th of fewer than a hundred values is their largest."""
    ranked = sorted(values)
    if not ranked:
        return None
    p50, p90, p99 = (ranked[max(0, math.ceil(len(ranked) * share / 100) - 1)] for share in (50, 90, 99))
    return Percentiles(p50=p50, p90=p90, p99=p99, n=len(ranked))


def relative_spread(values: Sequence[float]) -> float | None:
    """Half the range over the median: what to expect of the next repeat. None for fewer than two values."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / 2 / statistics.median(values)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def paired(plain: Iterable[T], others: Iterable[T], key: Callable[[T], Hashable]) -> list[tuple[T, T]]:
    """Each of `others` beside the last of `plain` with the same key; those without a partner are left out."""
    partners = {key(one): one for one in plain}
    return [(partners[place], other) for other in others if (place := key(other)) in partners]


def independent(prompts: Sequence[Hashable], blocks: Sequence[Hashable]) -> Sequence[Hashable]:
    """What shares no noise: prompts where there are several, else blocks.

    Blocks of one prompt share its text and so its acceptance: over several prompts they would count one draw many
    times, and an interval over them covers the mean of a workload in 67 % (3 prompts, 3 blocks each) to 37 % (10).
    """
    return prompts if len(set(prompts)) > 1 else blocks


def mean_over(values: Sequence[float], groups: Sequence[Hashable] | None = None, *, ratio: bool = False) -> Interval:
    """The mean with Student's 95 % interval over groups that share no noise; equal weight to each group.

    ``m -+ t_{0.975, n-1} sd / sqrt(n)`` over the n means of groups; with `ratio` of logarithms, so that a geometric
    mean and its inverse are equally far from one. Without `groups` each value is its own. The t interval keeps its
    promise with the few blocks of a bench, which a bootstrap does not. One group gives no interval.
    Source: Student 1908.
    """
    if not values:
        raise AnalysisError("No value was measured, so there is no mean.")
    means: dict[Hashable, list[float]] = {}
    for value, group in zip(values, range(len(values)) if groups is None else groups, strict=True):
        means.setdefault(group, []).append(math.log(value) if ratio else value)
    each = [statistics.fmean(group) for group in means.values()]
    centre, n = statistics.fmean(each), len(each)
    back = math.exp if ratio else float
    if n < 2:
        return Interval(value=back(centre), n=n)
    half = t_quantile(1 - _TAIL, n - 1) * statistics.stdev(each) / math.sqrt(n)
    return Interval(value=back(centre), low=back(centre - half), high=back(centre + half), n=n)


def paired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], groups: Sequence[Hashable] | None = None
) -> Interval:
    """Geometric mean of pairwise ratios; pairs come from one block each, so what both share (heat, load) cancels."""
    return mean_over([x / y for x, y in zip(numerators, denominators, strict=True)], groups, ratio=True)


# --- deciding -----------------------------------------------------------------------------------------------------


class Visible(Record, frozen=True, kw_only=True):
    """The smallest effects that a measurement would have shown 4 times in 5."""

    up: float  # ratio - 1, or difference
    down: float  # likewise, below 0

    @property
    def words(self) -> str:
        """Of ratios: ``+69 % or -41 %``."""
        return f"{100 * self.up:+.0f} % or {100 * self.down:.0f} %"


def tails(n_choices: int) -> tuple[float, float]:
    """What the lower and the upper end of a 95 % interval may miss when it is the best of so many.

    The best of m is no longer one of one: the lower ends of all m stay together below the truth in 95 %,
    ``1 - 0.95^(1/m)`` each (Sidak 1967; settings that share plain trials miss together, which is rarer still). What is
    left of 5 % goes to the upper end, so that the interval of each setting covers in 95 %.
    """
    low = min(_TAIL, 1 - (1 - 2 * _TAIL) ** (1 / n_choices))
    return low, 2 * _TAIL - low


def best_of(found: Interval, n_choices: int, *, ratio: bool = False) -> Interval:
    """The interval of `mean_over` for the best of so many: its ends moved as `tails` says.

    For what a fixed design claims, as a test of a published claim; what to use is for `trials.decisions` to say.
    """
    if n_choices < 2 or found.low is None or found.high is None:
        return found
    low, high = tails(n_choices)
    to, back = (math.log, math.exp) if ratio else (float, float)
    centre, error = to(found.value), _standard_error(found, ratio)
    ends = centre - t_quantile(1 - low, found.n - 1) * error, centre + t_quantile(1 - high, found.n - 1) * error
    return Interval(value=found.value, low=back(ends[0]), high=back(ends[1]), n=found.n)


def smallest_effect(found: Interval, n_choices: int = 1, *, ratio: bool = False) -> Visible | None:
    """The effects that would have been decided 4 times in 5 by a measurement like this one of `mean_over`.

    d / sqrt(n) standard deviations, with d from the noncentral t distribution: ``P(T'_{n-1}(d) > t) = 0.8`` (Cohen,
    "Statistical Power Analysis for the Behavioral Sciences", 1988); the standard deviation without the bias that its
    estimate has in small samples (Cureton 1968). None below four groups, whose own spread is hardly known.
    """
    if found.low is None or found.high is None or found.n < LEAST_FOR_POWER:
        return None
    n = found.n
    unbiased = math.exp(math.lgamma((n - 1) / 2) - math.lgamma(n / 2)) * math.sqrt((n - 1) / 2)
    error = _standard_error(found, ratio) * unbiased
    up, down = (_noncentrality(n - 1, tail) * error for tail in tails(n_choices))
    return Visible(up=math.expm1(min(up, 700.0)), down=math.expm1(-down)) if ratio else Visible(up=up, down=-down)


_DRAWS = 24  # of the unknown spread


def groups_needed(effect: float, spread: float, freedom: int, tail: float, power: float) -> int | None:
    """The least n whose t test over n groups decides `effect` with this chance; None beyond a million.

    ``E P(T'_{n-1}(effect sqrt(n) / sigma) > t_{1-tail, n-1})``, T' noncentral t (Cohen 1988), as a mean over what sigma
    may be where `spread` was estimated with `freedom` degrees: ``sigma^2 = spread^2 freedom / chi^2_freedom`` (Box and
    Tiao 1973). A guess from few groups so asks for more of them. Without a spread two groups decide.
    """
    import numpy as np
    from scipy.stats import chi2, nct

    if spread <= 0.0:
        return 2
    shares = (np.arange(_DRAWS) + 0.5) / _DRAWS
    sigma = spread * np.sqrt(freedom / chi2.ppf(shares, freedom))

    def decided(n: int) -> float:
        limit, shift = t_quantile(1 - tail, n - 1), effect * math.sqrt(n) / sigma
        # Far out it is certain, and scipy's series for the noncentral t gives up.
        return float(np.where(shift > 30 + 2 * limit, 1.0, nct.sf(limit, n - 1, np.minimum(shift, 37.0))).mean())

    low, high = 1, 2
    while decided(high) < power:
        low, high = high, 2 * high
        if high > 1 << 20:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) >= power else (middle, high)
    return high


def _standard_error(found: Interval, ratio: bool) -> float:
    assert found.low is not None and found.high is not None
    width = math.log(found.high / found.low) if ratio else found.high - found.low
    return width / 2 / t_quantile(1 - _TAIL, found.n - 1)


@cache
def t_quantile(share: float, freedom: float) -> float:
    """Student's quantile; `freedom` need not be whole."""
    from scipy.stats import t  # half a second of import that `mlsd --help` must not pay

    return float(t.ppf(share, freedom))


@cache
def _noncentrality(freedom: int, tail: float) -> float:
    """The shift, in standard errors, that is decided at this tail with a chance of `POWER`."""
    from scipy.optimize import brentq
    from scipy.stats import nct

    limit = t_quantile(1 - tail, freedom)
    return float(brentq(lambda d: nct.sf(limit, freedom, d) - POWER, 0.0, 4.0 * limit + 10.0))

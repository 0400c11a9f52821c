"""Small pure statistics: spreads, groups, intervals, and what they decide."""

import bisect
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

from mlsd.errors import AnalysisError
from mlsd.records import Record

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_ALPHA = 0.05  # what a 95 % interval may miss
POWER = 0.8
LEAST_FOR_POWER = 4  # groups


class Interval(Record, frozen=True, kw_only=True):
    """An estimate with its 95 % confidence interval; bounds are None when one sample cannot give any."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1

    def text(self, digits: int = 2, unit: str = "", ends: str = "({} to {})") -> str:
        """The value, and its ends where they are known."""
        bounds = () if self.low is None or self.high is None else (self.low, self.high)
        said = f" {ends.format(*(f'{end:.{digits}f}' for end in bounds))}" if bounds else ""
        return f"{self.value:.{digits}f}{unit}{said}"

    def digits(self, least: int = 2, against: float = 1.0) -> int:
        """So many that an end beside `against` is not rounded onto it: they say on which side it lies."""
        ends = [end for end in (self.low, self.high) if end not in (None, against)]
        shown = (n for n in range(least, 6) if all(f"{end:.{n}f}" != f"{against:.{n}f}" for end in ends))
        return next(shown, least)

    def decided(self, against: float = 1.0) -> bool | None:
        """Whether the interval excludes `against`; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= against <= self.high


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


def mean_over(
    values: Sequence[float], groups: Sequence[Hashable] | None = None, *, ratio: bool = False, n_choices: int = 1
) -> Interval:
    """The mean with Student's 95 % interval over groups that share no noise; equal weight to each group.

    ``m -+ t_{0.975, n-1} sd / sqrt(n)`` over the n means of groups; with `ratio` of logarithms, so that a geometric
    mean and its inverse are equally far from one. Without `groups` each value is its own. The t interval keeps its
    promise with the few blocks of a bench, which a bootstrap does not. One group gives no interval. For one of
    `n_choices` that were compared, the best of them for instance, the quantile is Dunnett's: all hold together.
    Sources: Student 1908; Dunnett 1955.
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
    deviation = math.sqrt(math.fsum((mean - centre) ** 2 for mean in each) / (n - 1))
    half = dunnett_quantile(_ALPHA, n_choices, n - 1) * deviation / math.sqrt(n)
    return Interval(value=back(centre), low=back(centre - half), high=back(centre + half), n=n)


LEAST_GROUPS = 3  # fewer cannot show a spread


def jackknife(estimate: float, without: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Interval:
    """An estimate with its 95 % interval from the same without each group in turn, kept within what it can be.

    ``estimate -+ t_{0.975, n-1} sqrt((n - 1) / n sum (e_(-i) - mean)^2)`` (Tukey 1958). No ends below three groups.
    """
    n = len(without)
    if n < LEAST_GROUPS:
        return Interval(value=estimate, n=n)
    half = t_quantile(1 - _ALPHA / 2, n - 1) * (n - 1) / math.sqrt(n) * statistics.stdev(without)
    return Interval(value=estimate, low=max(least, estimate - half), high=min(most, estimate + half), n=n)


# --- deciding -----------------------------------------------------------------------------------------------------


class Visible(Record, frozen=True, kw_only=True):
    """The smallest effects that a measurement would have shown 4 times in 5."""

    up: float  # ratio - 1, or difference
    down: float  # likewise, below 0

    @property
    def text(self) -> str:
        """Of ratios: ``+69 % or -41 %``."""
        return f"{100 * self.up:+.0f} % or {100 * self.down:.0f} %"


def smallest_effect(interval: Interval, n_choices: int = 1, *, ratio: bool = False) -> Visible | None:
    """The effects that would have been decided 4 times in 5 by a measurement like this `mean_over` of so many choices.

    d / sqrt(n) standard deviations, with d from the noncentral t distribution: ``P(T'_{n-1}(d) > t) = 0.8`` (Cohen,
    "Statistical Power Analysis for the Behavioral Sciences", 1988); the standard deviation without the bias that its
    estimate has in small samples (Cureton 1968). None below four groups, whose own spread is hardly known.
    """
    if interval.low is None or interval.high is None or interval.n < LEAST_FOR_POWER:
        return None
    n = interval.n
    unbiased = math.exp(math.lgamma((n - 1) / 2) - math.lgamma(n / 2)) * math.sqrt((n - 1) / 2)
    limit = dunnett_quantile(_ALPHA, n_choices, n - 1)
    width = math.log(interval.high / interval.low) if ratio else interval.high - interval.low
    size = _noncentrality(n - 1, limit) * width / 2 / limit * unbiased
    return Visible(up=math.expm1(min(size, 700.0)), down=math.expm1(-size)) if ratio else Visible(up=size, down=-size)


_DRAWS = 24  # of the unknown spread


def groups_needed(
    effect: float,
    spread: float,
    freedom: int,
    limit: Callable[[int, int], float],
    power: float,
    most: int,
    per_group: int = 1,
) -> int | None:
    """The least n whose t test over n groups decides `effect` with this chance; None beyond the most.

    ``E P(T'_f(effect sqrt(n) / sigma) > limit(n, f))`` with f = `per_group` (n - 1), T' noncentral t (Cohen 1988), as
    a mean over what sigma may be where `spread` was estimated with `freedom` degrees: ``sigma^2 = spread^2 freedom /
    chi^2_freedom`` (Box and Tiao 1973). A guess from few groups so asks for more of them. Without a spread two decide.
    """
    import numpy as np
    from scipy.special import gammaincinv, nctdtr  # scipy.stats takes a second to import

    if spread <= 0.0:
        return 2
    shares = (np.arange(_DRAWS) + 0.5) / _DRAWS
    sigma = spread * np.sqrt(freedom / (2 * gammaincinv(freedom / 2, shares)))

    def decided(n: int) -> float:
        freedom_of_n = per_group * (n - 1)
        end, shift = limit(n, freedom_of_n), effect * math.sqrt(n) / sigma
        if math.isinf(end):
            return 0.0
        # Far out it is certain, and scipy's series for the noncentral t gives up.
        return float(
            np.where(shift > 30 + 2 * end, 1.0, 1.0 - nctdtr(freedom_of_n, np.minimum(shift, 37.0), end)).mean()
        )

    n = bisect.bisect_left(range(most + 1), power, lo=2, key=decided)
    return n if n <= most else None


@cache
def t_quantile(share: float, freedom: float) -> float:
    """Student's quantile; `freedom` need not be whole."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return float(stdtrit(freedom, share))


@cache
def dunnett_quantile(alpha: float, m: int, freedom: float) -> float:
    """What the largest of m differences from one shared mean, in standard errors, exceeds with a chance of `alpha`.

    ``P(max |T_i| <= q) = E_s E_z [Phi(q sqrt(2) s + z) - Phi(-q sqrt(2) s + z)]^m``, z normal, ``s^2 = chi^2_f / f``: a
    multivariate t whose correlations are 1/2 (Dunnett 1955), by quadrature, so that it is the same each time. Student's
    quantile for one; `freedom` need not be whole, and may be infinite.
    """
    import numpy as np
    from scipy.special import gammaincinv, gammaln, ndtr

    if m == 1:
        return t_quantile(1 - alpha / 2, freedom)
    (z, of_z), (u, of_u) = _nodes()
    s, of_s = np.ones(1), np.ones(1)
    if math.isfinite(freedom):
        low, high = np.sqrt(2 * gammaincinv(freedom / 2, [1e-14, 1 - 1e-14]))  # of the chi distribution
        x = low + (high - low) * (u + 1) / 2
        log_density = (freedom - 1) * np.log(x) - x**2 / 2 - (freedom / 2 - 1) * math.log(2) - gammaln(freedom / 2)
        s, of_s = x / math.sqrt(freedom), of_u * np.exp(log_density)

    def missed(q: float) -> float:
        end = q * math.sqrt(2) * s[:, None]
        return alpha - 1 + float(of_s @ (ndtr(end + z) - ndtr(z - end)) ** m @ of_z / of_s.sum() / of_z.sum())

    return _root(missed, 0.0, 1.01 * t_quantile(1 - alpha / 2 / m, freedom))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is 0, to the last digits: scipy.optimize takes a quarter second to import.

    By false position, halving an end that stays (the Illinois method: Dowell and Jarratt 1971).
    """
    at_low, at_high, stays = rising(low), rising(high), 0
    while high - low > 1e-15 * high and low < (middle := (low * at_high - high * at_low) / (at_high - at_low)) < high:
        value = rising(middle)
        if value < 0:
            low, at_low, at_high, stays = middle, value, at_high / 2 if stays < 0 else at_high, -1
        else:
            high, at_high, at_low, stays = middle, value, at_low / 2 if stays > 0 else at_low, 1
    return high


@cache
def _nodes() -> Any:
    import numpy as np

    return np.polynomial.hermite_e.hermegauss(48), np.polynomial.legendre.leggauss(96)


def anytime_quantile(alpha: float, n: int, freedom: float, per_effect: float = 0.1) -> float:
    """Half the width, in standard errors of n units, of an interval that may be looked at after each of them.

    The mixture over effects N(0, sigma^2 / c) of the likelihood ratio of the t statistic is a martingale, which exceeds
    1 / alpha with a chance of at most alpha (Lai 1976; Wang and Ramdas 2024; Ville 1939):
    ``r = c / (n + c), k = (alpha sqrt(r))^(-2 / (f + 1)), h^2 = f (k - 1) / (1 - r k)``, infinite where r k >= 1.
    c = `per_effect` moves width between small and large effects and keeps the promise whatever it is.
    """
    r = per_effect / (n + per_effect)
    k = (alpha * math.sqrt(r)) ** (-2 / (freedom + 1))
    return math.sqrt(freedom * (k - 1) / (1 - r * k)) if r * k < 1 else math.inf


@cache
def _noncentrality(freedom: int, limit: float) -> float:
    """The shift, in standard errors, that exceeds this quantile with a chance of `POWER`."""
    from scipy.special import nctdtr

    return _root(lambda d: 1 - POWER - float(nctdtr(freedom, d, limit)), 0.0, 4.0 * limit + 10.0)

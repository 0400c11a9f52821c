"""The one interval of a session: it pays for what the session planned (`Design`) and for nothing else.

Methods, sources and simulated figures: docs/method.md. With m arms, n units (blocks of one prompt, else prompts) and f
degrees of freedom,

    fixed:       mean -+ d(m, f) sd / sqrt(n)      d: Dunnett 1955, all arms against one plain arm; several questions
                                                    share the chance to be wrong (Sidak 1967)
    sequential:  mean -+ h(n, f) sd / sqrt(n)      h: mixture of Gaussians, level alpha / m (Lai 1976)

and sd^2 the larger of an arm's own variance and of the mean of its own and all arms', weighted by freedom (Smyth 2004).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from mlsd.records import Record
from mlsd.stats import Interval, anytime_quantile, dunnett_quantile

Logs = Mapping[tuple[str, int], float]  # (prompt, block) -> ln of tok/s


class Stopping(StrEnum):
    """When a session ends; databases hold the values."""

    FIXED = "end"  # fixed repeats that nobody looks at before their end
    SEQUENTIAL = "any"  # --until, resumed, races: whenever enough is known


ALPHA = 0.05  # chance that anything a session decides is wrong
PROCESSES = 0.012  # standard deviation of ln of the ratio of two processes of one program
_SHARED = 0.25  # of the squared scatter of two arms' ratios comes from the plain trials that both divide by
_SHARED_TEXT = 0.5  # likewise of their prompts: what a text gains one arm it gains others, in part
_LEAST_FREEDOM = 2.0  # of prompts that are looked at more than once


class Design(Record, frozen=True, kw_only=True):
    """What a session planned: all that its intervals pay for, whatever a file holds besides."""

    n_arms: int  # beside plain decoding, over all questions that the session answers; controls not counted
    n_questions: int = 1  # in which these arms are, each with plain trials and scatter of its own
    stopping: Stopping
    process_per_arm: bool = False  # each is one throughout, as a server is


class Estimate(NamedTuple):
    """The mean of an arm's units, and what these scatter."""

    centre: float
    variance: float  # of a unit; with all arms' own, once these are known (`_pooled`)
    n: int  # units that share no noise: prompts where there are several, else blocks
    n_blocks: int = 0  # where prompts are the units: of all of them
    block_variance: float = 0.0  # then: of a block about its prompt
    freedom: float = 0.0  # how well the variance is known


def against(base: Logs, arms: Mapping[str, Logs], design: Design, *, alpha: float = ALPHA) -> dict[str, Interval]:
    """Each arm's speed over that of `base`, in the blocks that both were in; those that share none are left out."""
    return {name: interval_of(one, design, alpha) for name, one in estimates_over(base, arms).items()}


def intervals(
    estimates: Sequence[Estimate], design: Design, *, alpha: float = ALPHA, shared: float = _SHARED, ratio: bool = True
) -> list[Interval]:
    """Intervals that hold together with a chance of 1 - `alpha`; without ends where no scatter is known yet.

    `shared`: of the squared scatter of two of them has one source. `ratio`: they are logarithms of what is printed.
    """
    return [interval_of(one, design, alpha, ratio=ratio) for one in _pooled(estimates, shared)]


def quantile(design: Design, n: int, freedom: float, alpha: float = ALPHA) -> float:
    """Half the width in standard errors of an interval over n units; infinite where so few cannot have any."""
    if not freedom:
        return math.inf
    if design.stopping == Stopping.FIXED:
        return _at_end(design, freedom, alpha)
    return anytime_quantile(alpha / max(1, design.n_arms), n, freedom)


def _at_end(design: Design, freedom: float, alpha: float) -> float:
    per_question = math.ceil(design.n_arms / design.n_questions)
    return dunnett_quantile(1 - (1 - alpha) ** (1 / design.n_questions), max(1, per_question), freedom)


def has_several_prompts(base: Logs) -> bool:
    """Whether prompts, not blocks, are the units."""
    return len({prompt for prompt, _ in base}) > 1


def estimates_over(base: Logs, arms: Mapping[str, Logs]) -> dict[str, Estimate]:
    """Of each arm that shares blocks with `base`, the scatter of all of them pooled."""
    estimates = {name: estimate for name, own in arms.items() if (estimate := _estimate(base, own)) is not None}
    pooled = _pooled(list(estimates.values()), _SHARED_TEXT if has_several_prompts(base) else _SHARED)
    return dict(zip(estimates, pooled, strict=True))


def _estimate(base: Logs, logs: Logs) -> Estimate | None:
    units: dict[object, list[float]] = {}
    several = has_several_prompts(base)
    for block, log in logs.items():
        if block in base:
            units.setdefault(block[0] if several else block, []).append(log - base[block])
    if not units:
        return None
    of_units = estimate([statistics.fmean(unit) for unit in units.values()])
    if not several:
        return of_units
    n_blocks, total = sum(map(len, units.values())), sum(map(_squares, units.values()))
    return of_units._replace(n_blocks=n_blocks, block_variance=total / max(1, n_blocks - of_units.n))


def estimate(values: Sequence[float]) -> Estimate:
    """Of units that share no noise."""
    return Estimate(statistics.fmean(values), _squares(values) / max(1, len(values) - 1), len(values))


def _squares(values: Sequence[float]) -> float:
    """About their mean; `statistics.variance` counts in fractions, which takes a third of a decision's time."""
    centre = statistics.fmean(values)
    return math.fsum((value - centre) ** 2 for value in values)


def _pooled(estimates: Sequence[Estimate], shared: float) -> list[Estimate]:
    """With what all say of the scatter of each; k variances that share r of it count as k / (1 + r (k - 1))."""
    scattered = [of_arm for of_arm in estimates if of_arm.n > 1]
    total = sum(of_arm.n - 1 for of_arm in scattered)
    mean = sum((of_arm.n - 1) * of_arm.variance for of_arm in scattered) / total if total else 0.0
    pooled = total / (1 + shared * (len(scattered) - 1)) if scattered else 0.0
    with_all = []
    for of_arm in estimates:
        own_freedom, variance = of_arm.n - 1, of_arm.variance
        freedom = max(pooled, own_freedom) if own_freedom else 0.0
        if own_freedom < freedom:
            variance = max(variance, (own_freedom * variance + (freedom - own_freedom) * mean) / freedom)
        with_all.append(of_arm._replace(variance=variance, freedom=freedom))
    return with_all


def half_width(mean: Estimate, design: Design, alpha: float) -> float:
    """Half the width of an interval; infinite where so few units cannot have any."""
    if mean.n_blocks and design.stopping == Stopping.SEQUENTIAL:
        half = _half_of_prompts(mean, design, alpha / 2)
    else:
        factor = quantile(design, mean.n, mean.freedom, alpha)
        half = factor * math.sqrt(mean.variance / mean.n) if math.isfinite(factor) else math.inf
    return math.hypot(half, PROCESSES * _at_end(design, math.inf, alpha) if design.process_per_arm else 0.0)


def _half_of_prompts(mean: Estimate, design: Design, alpha: float) -> float:
    """Prompts are all there from the first block, so that looks are paid for by the noise of blocks alone.

    Half of the chance to be wrong goes to which prompts were drawn, half to when it was looked at.
    """
    if mean.freedom < _LEAST_FREEDOM:
        return math.inf
    half = _at_end(design, mean.freedom, alpha) * math.sqrt(mean.variance / mean.n)
    factor = quantile(design, mean.n_blocks, mean.n_blocks - mean.n, alpha)
    return math.hypot(half, factor * math.sqrt(mean.block_variance / mean.n_blocks)) if math.isfinite(factor) else half


def interval_of(mean: Estimate, design: Design, alpha: float, *, ratio: bool = True) -> Interval:
    """The interval of one mean; of a logarithm it is that of what is printed."""
    half, back = half_width(mean, design, alpha), (lambda log: math.exp(min(log, 700.0))) if ratio else float
    low, high = (back(mean.centre + end) if math.isfinite(half) else None for end in (-half, half))
    return Interval(value=back(mean.centre), low=low, high=high, n=mean.n)

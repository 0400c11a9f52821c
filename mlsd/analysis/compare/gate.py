"""The gate: which measures of B are faster, slower or the same as A's, and what it takes to tell where none is decided.

Pure: series of values in, findings out. Intervals are those of `trials.intervals` over blocks, whose pairs share heat
and load: together they say something untrue in one of two hundred (`FALSE_ALARM`). What the control, A once more, shows
to be different is not believed of B, and nothing is said of B while the control, as far as its 99 % interval goes, may
differ as much as B does.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import msgspec

from mlsd.records import Record
from mlsd.stats import Interval, groups_needed
from mlsd.trials.intervals import Design, Stopping, estimate, intervals, quantile

Sense = Literal["rate", "time", "level"]  # more is faster; more is slower; neither
Verdict = Literal["faster", "slower", "higher", "lower", "same", "not decided yet"]
FALSE_ALARM = 0.005  # chance that any finding of a comparison is untrue
POWER = 0.98  # chance with which a promised number of blocks shows an effect
MARGIN = 0.02  # what counts as the same, and what a promise is about, unless a caller says another
LEAST_BLOCKS = 4  # below it the spread is hardly known, and nothing is decided
_CONTROL = 0.01  # chance that a control's interval misses
_ROUNDING = 1e-12  # of logarithms
_MOST_BLOCKS = 1_000  # that are worth promising
_BEYOND_CONTROL = 1.5  # of the spread, that an effect reaches beyond what the control may be; by simulation
_MORE_SCATTER = 1.5  # a B that scatters so many times as much as A does so itself


class Measure(Record, frozen=True, kw_only=True):
    """One thing that is measured on both sides."""

    name: str  # "plain", "pld, gamma 4: speedup", "T(5)"
    unit: str
    sense: Sense
    is_ratio: bool = True  # else compared by difference: shares, which may be 0
    counts: bool = True  # a session with a goal goes on until this one is known well enough


class Series(Record, frozen=True, kw_only=True):
    """A measure in every block; None where a side has no valid value there."""

    measure: Measure
    a: tuple[float | None, ...]
    b: tuple[float | None, ...]
    control: tuple[float | None, ...] = ()


class Finding(Record, frozen=True, kw_only=True):
    """What the gate says of a measure."""

    measure: Measure
    n: int  # blocks with every side
    a: float | None
    b: float | None
    change: Interval | None  # B/A, or B-A; all findings of a comparison lie in theirs with a chance of 99.5 %
    control: Interval | None  # A once more over A, 99 % each
    verdict: Verdict
    within: float | None  # of no change: the whole interval lies so near
    more_blocks: int | None = None  # of one not decided yet: so many more
    would_show: float | None = None  # would show so much, 49 times in 50

    @property
    def percent(self) -> float | None:
        """The change in per cent; of shares in percentage points."""
        if self.change is None:
            return None
        return 100 * (self.change.value - 1.0) if self.measure.is_ratio else 100 * self.change.value

    @property
    def sentence(self) -> str:
        if self.verdict == "same" and self.within is not None:
            return f"same within {_percent(self.within)}"
        if self.verdict == "not decided yet":
            if self.more_blocks is None or self.would_show is None:
                return "not decided yet: too few blocks" if self.n < LEAST_BLOCKS else "not decided yet"
            return f"not decided yet: {self.more_blocks} more blocks would show {_percent(self.would_show)}"
        return f"{self.verdict} by {abs(self.percent or 0.0):.1f} %"


def _percent(share: float) -> str:
    """Rounded up, so that a bound stays one."""
    return f"{math.ceil(1000 * share - 1e-6) / 10:g} %"


def judge(series: Sequence[Series], margin: float = MARGIN, stopping: Stopping = Stopping.FIXED) -> tuple[Finding, ...]:
    """Findings on paired blocks, one for each series."""
    # What does not vary, as an acceptance without sampling, cannot differ by chance.
    n_noisy = sum(
        any(values and max(values) - min(values) > _ROUNDING for values in differences(each)) for each in series
    )
    # Measures have neither a plain arm nor a unit in common, so each is a question of its own.
    design = Design(n_arms=n_noisy, n_questions=max(1, n_noisy), stopping=stopping)
    return tuple(_finding(each, design, margin) for each in series)


def precise_enough(findings: Sequence[Finding], margin: float = MARGIN) -> bool:
    """Whether every measure that counts is decided, or an effect as large as the margin would have been seen."""
    return all(
        f.verdict != "not decided yet" or (f.would_show is not None and f.would_show < margin)
        for f in findings
        if f.measure.counts
    )


# --- inside -------------------------------------------------------------------------------------------------------


def _blocks(series: Series) -> list[tuple[float, ...]]:
    """The values of blocks that every side has, as they are compared."""
    ratio, sides = (
        series.measure.is_ratio,
        (series.a, series.b, series.control) if series.control else (series.a, series.b),
    )
    blocks = []
    for block in zip(*sides, strict=True):
        values = [value for value in block if value is not None and (value > 0 or not ratio)]
        if len(values) == len(sides):
            blocks.append(tuple(math.log(value) if ratio else value for value in values))
    return blocks


def differences(series: Series) -> tuple[list[float], list[float]]:
    """B against A in each block, against the mean of A and its control where there is one; and control against A."""
    blocks = _blocks(series)
    if series.control:
        return [b - (a + c) / 2 for a, b, c in blocks], [c - a for a, _, c in blocks]
    return [b - a for a, b in blocks], []


def _finding(series: Series, design: Design, margin: float) -> Finding:
    """Beyond the floor on one side, else within the margin on both (two one-sided tests, Schuirmann 1987)."""
    (changes, control), ratio = differences(series), series.measure.is_ratio
    scaled: Callable[[float], float] = (lambda value: math.log(max(value, 1e-300))) if ratio else float
    change, noise = _intervals(changes, control, design, ratio) if len(changes) > 1 else (None, None)
    floor = abs(statistics.fmean(control)) if noise is not None and noise.decided(1.0 if ratio else 0.0) else 0.0
    verdict: Verdict = "not decided yet"
    within = None
    if change is not None and change.low is not None and change.high is not None:
        low, high = scaled(change.low), scaled(change.high)
        within = max(abs(math.expm1(min(end, 700.0)) if ratio else end) for end in (low, high))
        if low > floor or high < -floor:
            reach = _reach(noise, scaled)
            verdict = _VERDICTS[series.measure.sense][low < 0] if reach < abs(scaled(change.value)) else verdict
        elif within <= margin:
            verdict = "same"
    middles = [statistics.fmean(side) for side in zip(*_blocks(series), strict=True)]
    a, b, *_ = (math.exp(m) if ratio else m for m in middles) if middles else (None, None)
    finding = Finding(
        measure=series.measure, n=len(changes), a=a, b=b, change=change, control=noise, verdict=verdict, within=within
    )
    if len(changes) < LEAST_BLOCKS:
        return msgspec.structs.replace(finding, verdict="not decided yet")
    return _promise(finding, changes, control, floor, design, margin) if verdict == "not decided yet" else finding


_VERDICTS: dict[Sense, tuple[Verdict, Verdict]] = {
    "rate": ("faster", "slower"), "time": ("slower", "faster"), "level": ("higher", "lower"),
}  # fmt: skip  # of what is more and less than A's


def _reach(noise: Interval | None, scaled: Callable[[float], float]) -> float:
    """How much the control may differ; nothing without one."""
    if noise is None:
        return 0.0
    return math.inf if noise.low is None or noise.high is None else max(abs(scaled(noise.low)), abs(scaled(noise.high)))


def _intervals(
    changes: Sequence[float], control: Sequence[float], design: Design, ratio: bool
) -> tuple[Interval, Interval | None]:
    """Of B and of the control. Var(b - (a + c)/2) is 3/4 of Var(c - a) where B scatters as A does, so each tells
    of the other's scatter; the two differences are independent.
    """
    scaled = [changes, [math.sqrt(0.75) * value for value in control]] if control else [changes]
    ranges = intervals(list(map(estimate, scaled)), design, alpha=FALSE_ALARM, shared=0.0, ratio=ratio)
    if not control:
        return ranges[0], None
    (alone,) = intervals([estimate(control)], Design(n_arms=1, stopping=design.stopping), alpha=_CONTROL, ratio=ratio)
    return ranges[0], alone


def _promise(
    finding: Finding, changes: Sequence[float], control: Sequence[float], floor: float, design: Design, margin: float
) -> Finding:
    """How many more blocks would show an effect as large as the margin.

    Half of it where it would have been seen already, and so many times as much as it takes to be seen in this life.
    """
    spread, freedom = statistics.stdev(changes), len(changes) - 1
    if control:
        # Var(b - (a + c)/2) is 3/4 of Var(c - a) where B scatters as A does: a second estimate, of other noise.
        other = math.sqrt(0.75) * statistics.stdev(control)
        if spread < _MORE_SCATTER * other:
            spread, freedom = math.sqrt((spread**2 + other**2) / 2), 2 * freedom
        spread *= _BEYOND_CONTROL

    def needed(effect: float) -> int | None:
        size, per_block = (math.log1p(effect) if finding.measure.is_ratio else effect) - floor, 2 if control else 1
        limit = partial(quantile, design, alpha=FALSE_ALARM)
        return groups_needed(size, spread, freedom, limit, POWER, _MOST_BLOCKS, per_block) if size > 0 else None

    n = needed(margin)
    while n is not None and n <= finding.n:
        margin /= 2
        n = needed(margin)
    while n is None and margin < 1:
        margin *= 2
        n = needed(margin)
    more = None if n is None else max(1, n - finding.n)
    return msgspec.structs.replace(finding, more_blocks=more, would_show=None if more is None else margin)

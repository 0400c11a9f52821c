"""What every benchmark shares: interleaved repeats, medians with spread, one table."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One figure of a benchmark: median and range over the repeats, and the bar it should clear."""

    name: str
    value: float
    low: float
    high: float
    unit: str  # "ratio", "us", "%", "s"
    bar: str = ""  # what it must reach, in words: ">= 0.98"
    passed: bool | None = None  # None: reported, no bar


def of_samples(
    name: str, samples: Sequence[float], unit: str, *, at_least: float | None = None, at_most: float | None = None
) -> Result:
    """A result from the repeats of one figure; the bar is held against the median."""
    value = statistics.median(samples)
    bar, passed = "", None
    if at_least is not None:
        bar, passed = f">= {at_least:g}", value >= at_least
    elif at_most is not None:
        bar, passed = f"<= {at_most:g}", value <= at_most
    return Result(name, value, min(samples), max(samples), unit, bar, passed)


def counted(name: str, n: int, bar: str = "", passed: bool | None = None) -> Result:
    """A result that is a count."""
    return Result(name, n, n, n, "count", bar, passed)


def interleaved(arms: Mapping[str, Callable[[], float]], repeats: int, seed: int = 0) -> dict[str, list[float]]:
    """Run every arm once a repeat, in random order; returns each arm's figures, repeat by repeat."""
    rng = random.Random(seed)
    figures: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name in rng.sample(list(arms), len(arms)):
            figures[name].append(arms[name]())
    return figures


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Repeat by repeat, so that what both arms suffered together cancels."""
    return [x / y for x, y in zip(numerator, denominator, strict=True)]

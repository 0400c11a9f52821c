"""From timed passes to T(k) with intervals, target efficiency and kernel steps. Times in ms."""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from mlsd.analysis.fits.curves import Steps, find_steps
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import Interval, grouped
from mlsd.store.rows import CalibrationPoint, PassKind

_LEAST_WIDTHS = 8
_Z = 1.96
STEP_ROWS = 33  # kernel steps are looked for where every k was measured


class PassTime(Record, frozen=True, kw_only=True):
    """How long one kind of pass takes."""

    kind: PassKind
    rows: int
    depth: int
    ms: Interval  # median over repeats


class TargetCurve(Record, frozen=True, kw_only=True):
    """T(k) of one model at one depth."""

    depth: int
    passes: tuple[PassTime, ...]  # by rows
    efficiency: dict[int, float]  # T(1) / T(k)
    per_row: dict[int, float]  # T(k) / (k T(1)): below 1 verification saves, at 1 it is as slow as plain decoding
    steps: Steps | None  # None where too few different k were timed to tell a step from noise


def pass_times(points: Iterable[CalibrationPoint]) -> tuple[PassTime, ...]:
    """Medians over repeats of every kind, width and depth of one model, in that order."""
    cells = grouped(points, lambda p: (p.kind, p.depth, p.rows))
    return tuple(
        PassTime(kind=kind, rows=rows, depth=depth, ms=median_interval([p.span_ns / 1e6 for p in timed]))
        for (kind, depth, rows), timed in sorted(cells.items())
    )


def relative_error(points: Iterable[CalibrationPoint], unknown: float) -> float:
    """Median standard error of a T(k), relative; `unknown` where no pass has an interval."""
    halves = [
        (t.ms.high - t.ms.low) / 2 / t.ms.value / _Z
        for t in pass_times(points)
        if t.kind == "target_pass" and t.ms.low is not None and t.ms.high is not None
    ]
    return statistics.median(halves) if halves else unknown


def median_interval(values: Sequence[float]) -> Interval:
    """The median, and the order statistics around it that hold it 95 times of 100.

    ``P(X_(j) <= m <= X_(n+1-j)) = 1 - 2 P(Bin(n, 1/2) < j)`` (David and Nagaraja, "Order Statistics", 2003), with the
    largest j that keeps that; below six values the whole range, which then promises less. No shape of the
    noise is assumed.
    """
    ordered, n = sorted(values), len(values)
    if n < 2:
        return Interval(value=ordered[0], n=n)
    from scipy.special import bdtr  # scipy.stats takes a second to import

    inside = [j for j in range(1, n // 2 + 1) if 1 - 2 * float(bdtr(j - 1, n, 0.5)) >= 0.95]
    j = max(inside, default=1)
    return Interval(value=statistics.median(ordered), low=ordered[j - 1], high=ordered[n - j], n=n)


def target_curve(points: Sequence[CalibrationPoint], depth: int | None = None) -> TargetCurve:
    """T(k) at `depth`, by default the smallest measured. Raises AnalysisError when T(1) is not there."""
    passes = [p for p in points if p.kind == "target_pass"]
    if not passes:
        raise AnalysisError("No target pass was timed.", hint="Measure T(k) with `mlsd calibrate MODEL`.")
    depth = min(p.depth for p in passes) if depth is None else depth
    at_depth = [p for p in passes if p.depth == depth]
    times = pass_times(at_depth)
    by_rows = {t.rows: t.ms.value for t in times}
    if 1 not in by_rows:
        raise AnalysisError(f"T(1) was not timed at depth {depth}.", hint="Include 1 in --rows.")
    near = [p for p in at_depth if p.rows <= STEP_ROWS]
    steps = None
    if len({p.rows for p in near}) >= _LEAST_WIDTHS:
        medians = {t.rows: t.ms.value for t in times if t.rows <= STEP_ROWS}
        steps = find_steps(np.array(list(medians)), np.array(list(medians.values())))
    return TargetCurve(
        depth=depth,
        passes=times,
        efficiency={rows: by_rows[1] / ms for rows, ms in by_rows.items()},
        per_row={rows: ms / (rows * by_rows[1]) for rows, ms in by_rows.items()},
        steps=steps,
    )

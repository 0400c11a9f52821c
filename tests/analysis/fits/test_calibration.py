"""T(k) from timed passes: medians with intervals that hold, efficiency, and kernel steps that were put in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.analysis.fits.calibration import median_interval, pass_times, target_curve
from mlsd.errors import AnalysisError
from mlsd.store.rows import CalibrationPoint


def points(
    times_ms: dict[int, float], *, repeats: int = 7, noise: float = 0.01, depth: int = 64
) -> list[CalibrationPoint]:
    rng = np.random.default_rng(3)
    return [
        CalibrationPoint(
            model_key="m", kind="target_pass", rows=rows, depth=depth, repeat=repeat,
            span_ns=round(1e6 * ms * float(np.exp(noise * rng.standard_normal()))),
        )
        for repeat in range(repeats)
        for rows, ms in times_ms.items()
    ]  # fmt: skip


def test_efficiency_compares_with_one_row() -> None:
    curve = target_curve(points({1: 4.0, 2: 5.0, 4: 8.0}, noise=0.0))
    assert curve.efficiency[4] == pytest.approx(0.5, rel=1e-6)
    assert curve.per_row[4] == pytest.approx(0.5, rel=1e-6)
    assert curve.steps is None  # three widths cannot show a step


def test_depths_are_kept_apart() -> None:
    both = [*points({1: 4.0, 2: 5.0}, noise=0.0), *points({1: 6.0, 2: 9.0}, noise=0.0, depth=512)]
    assert target_curve(both).depth == 64
    assert target_curve(both, 512).efficiency[2] == pytest.approx(6 / 9, rel=1e-6)
    assert {(p.depth, p.rows) for p in pass_times(both)} == {(64, 1), (64, 2), (512, 1), (512, 2)}


def test_nothing_timed_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(AnalysisError, match="mlsd calibrate"):
        target_curve([])
    with pytest.raises(AnalysisError, match=r"T\(1\)"):
        target_curve(points({2: 5.0}))


@given(st.lists(st.floats(0.1, 1e3), min_size=2, max_size=30))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    found = median_interval(values)
    assert found.low is not None and found.high is not None
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(600):
        found = median_interval(list(rng.exponential(1.0, 11)))
        assert found.low is not None and found.high is not None
        hits += found.low <= np.log(2) <= found.high
    assert hits / 600 >= 0.93


def test_one_value_has_no_interval() -> None:
    assert median_interval([2.0]).low is None

"""Small statistics against known answers."""

from __future__ import annotations

import math

import pytest

from mlsd.stats import median, paired_ratio, relative_spread


def test_paired_ratio_of_constant_pairs_is_exact() -> None:
    result = paired_ratio([20.0, 30.0, 40.0], [10.0, 15.0, 20.0])
    assert result.value == pytest.approx(2.0)
    assert result.low == pytest.approx(2.0)
    assert result.high == pytest.approx(2.0)


def test_paired_ratio_has_students_interval_on_the_log_scale() -> None:
    result = paired_ratio([math.e, 1.0, math.e], [1.0, 1.0, 1.0])
    half = 4.302652729911275 * math.sqrt(1 / 3) / math.sqrt(3)  # t(0.975, 2) * sd of (1, 0, 1) / sqrt(3)
    assert result.low is not None
    assert math.log(result.value) == pytest.approx(2 / 3)
    assert math.log(result.low) == pytest.approx(2 / 3 - half)
    assert result.decided() is False


def test_one_pair_gives_no_interval() -> None:
    result = paired_ratio([2.0], [1.0])
    assert (result.value, result.low, result.decided()) == (2.0, None, None)


def test_median_and_spread_of_nothing_are_not_measured() -> None:
    assert (median([]), relative_spread([1.0])) == (None, None)
    assert relative_spread([9.0, 10.0, 11.0]) == pytest.approx(0.1)

"""Intervals cover what they promise, effects that would have shown show, and choosing the best is paid for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_t

from mlsd.errors import AnalysisError
from mlsd.stats import (
    Interval,
    anytime_quantile,
    dunnett_quantile,
    groups_needed,
    mean_over,
    percentiles,
    relative_spread,
    smallest_effect,
    t_quantile,
)


def test_groups_weigh_equally_and_one_group_has_no_interval() -> None:
    mean = mean_over([1.0, 1.0, 1.0, 4.0], ["a", "a", "a", "b"], ratio=True)
    assert (mean.value, mean.n) == (pytest.approx(2.0), 2)
    assert mean.low is not None and mean.low < 1.0
    assert mean_over([3.0, 5.0], ["a", "a"]).low is None
    with pytest.raises(AnalysisError):
        mean_over([], [])


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 6, 12])
def test_claimed_smallest_effects_are_the_exact_ones_and_are_seen_four_times_in_five(n: int) -> None:
    rng = np.random.default_rng(n)
    claimed = []
    for _ in range(1500):
        visible = smallest_effect(mean_over(list(np.exp(rng.normal(0, 0.1, n))), ratio=True), ratio=True)
        assert visible is not None
        claimed.append((math.log1p(visible.up), math.log1p(visible.down)))
    up, down = np.mean(claimed, axis=0)
    assert up == pytest.approx(-down)
    ends = [mean_over(list(rng.normal(up, 0.1, n))) for _ in range(3000)]
    assert np.mean([(e.low or 0.0) > 0 for e in ends]) == pytest.approx(0.8, abs=0.04)


def test_below_four_groups_no_smallest_effect_is_claimed() -> None:
    assert smallest_effect(mean_over([1.0, 1.1, 0.9], ratio=True), ratio=True) is None
    assert smallest_effect(Interval(value=1.0)) is None


def test_the_best_of_several_has_the_wider_interval_that_all_of_them_hold_together() -> None:
    values = [1.0, 1.2, 1.1, 1.3]
    alone, best = (mean_over(values, ratio=True, n_choices=m) for m in (1, 18))
    assert alone.low is not None and best.low is not None
    wider = math.log(best.value / best.low) / math.log(alone.value / alone.low)
    assert wider == pytest.approx(dunnett_quantile(0.05, 18, 3) / t_quantile(0.975, 3))
    one, several = smallest_effect(alone, ratio=True), smallest_effect(best, 18, ratio=True)
    assert one is not None and several is not None and several.up > one.up


def test_the_spread_of_one_value_is_not_measured() -> None:
    assert relative_spread([1.0]) is None
    assert relative_spread([9.0, 10.0, 11.0]) == pytest.approx(0.1)


def student(n: int, freedom: float) -> float:
    return t_quantile(0.975, freedom)


def test_groups_needed_are_those_of_the_tables_and_more_where_the_spread_is_a_guess() -> None:
    # Cohen 1988: a one-sample test of d = 0.5 with power 0.8 at 5 % two-sided takes 34; of 0.2 it takes 199.
    assert groups_needed(0.5, 1.0, 1_000_000, student, 0.8, 1_000) == 34
    assert groups_needed(0.2, 1.0, 1_000_000, student, 0.8, 1_000) == 199
    guessed = groups_needed(0.5, 1.0, 4, student, 0.8, 1_000)
    assert guessed is not None and guessed > 34
    assert groups_needed(0.5, 0.0, 4, student, 0.8, 1_000) == 2
    assert groups_needed(1e-9, 1.0, 4, student, 0.8, 1_000) is None


@pytest.mark.slow
def test_promised_groups_keep_their_promise_though_the_spread_was_guessed_from_few() -> None:
    rng, effect, freedom = np.random.default_rng(5), 0.05, 7
    n_found = 0
    for _ in range(400):
        spread = 0.04 * math.sqrt(rng.chisquare(freedom) / freedom)
        n = groups_needed(effect, spread, freedom, student, 0.9, 100_000)
        assert n is not None
        n_found += mean_over(list(rng.normal(effect, 0.04, n))).decided(0.0) is True
    assert n_found / 400 > 0.87


def test_dunnetts_quantiles_are_those_of_his_tables_and_students_for_one_arm() -> None:
    # Dunnett 1964, "New tables for multiple comparisons with a control", two-sided at 5 %.
    tables = {(2, 10): 2.57, (3, 6): 3.10, (9, 20): 2.95, (4, 60): 2.51, (4, math.inf): 2.44}
    for (m, freedom), printed in tables.items():
        assert dunnett_quantile(0.05, m, freedom) == pytest.approx(printed, abs=0.006)
    end = dunnett_quantile(0.01, 3, 4.5)
    shape = np.full((3, 3), 0.5) + np.eye(3) / 2
    held = multivariate_t(shape=shape, df=4.5, seed=0).cdf([end] * 3, lower_limit=[-end] * 3, maxpts=100_000)
    assert held == pytest.approx(0.99, abs=1e-4)
    assert dunnett_quantile(0.05, 1, 4) == t_quantile(0.975, 4)


def test_an_interval_at_every_look_narrows_with_units_and_freedom() -> None:
    """That it misses in five of a hundred sessions at most is simulated in `test_truth_intervals`."""
    factors = [anytime_quantile(0.05, n, n - 1) for n in (2, 3, 6, 21)]
    assert factors[0] == math.inf > factors[1] > factors[2] > factors[3]
    assert anytime_quantile(0.01, 10, 9) > anytime_quantile(0.05, 10, 9) > anytime_quantile(0.05, 10, 30)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_so_many_per_cent_of_the_values_do_not_exceed_their_percentile(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None and found.n == len(values) and {found.p50, found.p90, found.p99} <= set(values)
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert sum(one <= value for one in values) >= share * len(values) - 1e-9
        assert sum(one < value for one in values) < share * len(values)

"""Intervals cover what they promise, effects that would have shown show, and choosing the best is paid for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.errors import AnalysisError
from mlsd.stats import (
    Interval,
    best_of,
    groups_needed,
    independent,
    mean_over,
    median,
    paired,
    percentiles,
    relative_spread,
    smallest_effect,
    t_quantile,
    tails,
)


def test_each_goes_beside_the_last_plain_one_of_its_key() -> None:
    plain, others = [("a", 1), ("a", 2), ("b", 3)], [("a", 10), ("c", 11), ("b", 12)]
    assert paired(plain, others, lambda one: one[0]) == [(("a", 2), ("a", 10)), (("b", 3), ("b", 12))]


def test_groups_weigh_equally_and_one_group_has_no_interval() -> None:
    mean = mean_over([1.0, 1.0, 1.0, 4.0], ["a", "a", "a", "b"], ratio=True)
    assert (mean.value, mean.n) == (pytest.approx(2.0), 2)
    assert mean.low is not None and mean.low < 1.0
    assert mean_over([3.0, 5.0], ["a", "a"]).low is None
    with pytest.raises(AnalysisError):
        mean_over([], [])


def test_prompts_are_what_is_independent_where_there_are_several() -> None:
    assert independent(["a", "b", "a"], [1, 2, 3]) == ["a", "b", "a"]
    assert independent(["a", "a", "a"], [1, 2, 3]) == [1, 2, 3]


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


def test_below_four_groups_nothing_is_said_of_what_would_have_shown() -> None:
    assert smallest_effect(mean_over([1.0, 1.1, 0.9], ratio=True), ratio=True) is None
    assert smallest_effect(Interval(value=1.0)) is None


def test_the_best_of_one_or_two_is_an_ordinary_interval_and_of_more_a_lower_one() -> None:
    found = mean_over([1.0, 1.2, 1.1, 1.3], ratio=True)
    assert best_of(found, 1, ratio=True) == found
    assert tails(2)[0] == pytest.approx(0.025)
    more = best_of(found, 18, ratio=True)
    assert found.low is not None and more.low is not None and more.low < found.low
    assert found.high is not None and more.high is not None and more.high < found.high
    low, centre = tails(18)[0], math.log(found.value)
    half, wide = centre - math.log(found.low), centre - math.log(more.low)
    assert wide / half == pytest.approx(t_quantile(1 - low, 3) / 3.182, rel=1e-3)


def test_median_and_spread_of_nothing_are_not_measured() -> None:
    assert (median([]), relative_spread([1.0])) == (None, None)
    assert relative_spread([9.0, 10.0, 11.0]) == pytest.approx(0.1)


def test_groups_needed_are_those_of_the_tables_and_more_where_the_spread_is_a_guess() -> None:
    # Cohen 1988: a one-sample test of d = 0.5 with power 0.8 at 5 % two-sided takes 34; of 0.2 it takes 199.
    assert groups_needed(0.5, 1.0, 1_000_000, 0.025, 0.8) == 34
    assert groups_needed(0.2, 1.0, 1_000_000, 0.025, 0.8) == 199
    guessed = groups_needed(0.5, 1.0, 4, 0.025, 0.8)
    assert guessed is not None and guessed > 34
    assert groups_needed(0.5, 0.0, 4, 0.025, 0.8) == 2
    assert groups_needed(1e-9, 1.0, 4, 0.025, 0.8) is None


def test_promised_groups_keep_their_promise_though_the_spread_was_guessed_from_few() -> None:
    rng, effect, freedom = np.random.default_rng(5), 0.05, 7
    n_found = 0
    for _ in range(400):
        spread = 0.04 * math.sqrt(rng.chisquare(freedom) / freedom)
        n = groups_needed(effect, spread, freedom, 0.025, 0.9)
        assert n is not None
        n_found += mean_over(list(rng.normal(effect, 0.04, n))).decided(0.0) is True
    assert n_found / 400 > 0.87


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_so_many_per_cent_of_the_values_do_not_exceed_their_percentile(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None and found.n == len(values) and {found.p50, found.p90, found.p99} <= set(values)
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert sum(one <= value for one in values) >= share * len(values) - 1e-9
        assert sum(one < value for one in values) < share * len(values)

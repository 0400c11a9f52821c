import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.records import Round
from mlsd.trials.acceptance_meanings import MEANINGS, Meaning, by_position, chance_for, loop_of, mgl_of, rate_of
from mlsd.trials.rates import sums, total


def test_a_share_of_output_and_a_share_of_proposals_of_one_run_give_the_same_tokens_a_round() -> None:
    # dflash-mlx: 914 of 1,024 tokens in 110 rounds of 15 drafted tokens.
    assert mgl_of(914 / 1024, "output", 15) == pytest.approx(1024 / 110)
    assert mgl_of(914 / (110 * 15), "proposed", 15) == pytest.approx(1024 / 110, abs=0.01)


@given(st.floats(0.0, 1.0), st.sampled_from(MEANINGS), st.integers(1, 16))
def test_no_rate_commits_fewer_than_one_or_more_than_gamma_and_one(rate: float, meaning: Meaning, gamma: int) -> None:
    mgl = mgl_of(rate, meaning, gamma)
    assert mgl is not None and 1.0 <= mgl <= gamma + 1.0 + 1e-9


@given(st.floats(1.0, 17.0), st.sampled_from(MEANINGS), st.integers(1, 16))
def test_a_rate_turned_into_tokens_a_round_and_back_is_itself(mgl: float, meaning: Meaning, gamma: int) -> None:
    rate = rate_of(mgl, meaning, gamma)
    if mgl > gamma + 1.0:
        assert rate is None
    else:
        assert rate is not None and mgl_of(rate, meaning, gamma) == pytest.approx(mgl, rel=1e-6)


def test_a_rate_of_proposals_needs_the_length_of_the_drafts_and_a_share_of_output_does_not() -> None:
    assert mgl_of(0.5, "proposed", None) is None
    assert mgl_of(0.5, "output", None) == 2.0
    assert rate_of(2.0, "proposed", None) is None
    assert rate_of(1.875, "position", 3) == pytest.approx(0.5)


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_what_repeats_to_the_end_is_a_loop_of_the_shortest_period(before: list[int], part: list[int]) -> None:
    tokens = tuple(before + part * 30)
    period = loop_of(tokens)
    if len(tokens) >= max(24, 9 * len(part)) and len(tokens) <= 90 * len(part):
        assert period is not None and period <= len(part)
    assert period is None or tokens[-period:] == tokens[-2 * period : -period]


def test_text_and_what_is_too_short_to_tell_are_no_loops() -> None:
    assert loop_of(tuple(range(200))) is None and loop_of((7,) * 23) is None and loop_of((7,) * 24) == 1


def test_each_position_counts_the_rounds_that_reached_it() -> None:
    # Three rounds of four proposed tokens, one of two, one without a draft.
    rounds = sums(_round(k, a) for k, a in ((4, 4), (4, 1), (4, 0), (2, 2), (0, 0)))
    counted = [(p.position, p.reached, p.accepted) for p in by_position([(rounds, 1)])]
    assert counted == [(1, 4, 3), (2, 3, 2), (3, 1, 1), (4, 1, 1)]
    assert rounds.acceptance_by_position == 7 / 9 and rounds.acceptance_rate == 7 / 14


def test_drafts_that_end_early_and_stand_whole_are_always_right() -> None:
    """Where every proposed token was accepted the rate is 1, however long drafts might have been."""
    whole = sums(_round(k, k) for k in (1, 2, 3, 0))
    assert whole.acceptance_by_position == 1.0
    assert all(place.rate.value == 1.0 for place in by_position([(whole, 1)]))


def test_repeats_of_a_greedy_trial_narrow_no_interval() -> None:
    once = sums(_round(2, a) for a in (0, 1, 2, 2, 1, 2))
    (first, *_), (again, *_) = by_position([(once, 1)]), by_position([(total([once] * 5), 5)])
    assert again.rate == first.rate and again.reached == 5 * first.reached


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda pair: (max(pair), min(pair))), min_size=1))
def test_the_scalar_is_the_sum_over_positions_and_gives_back_the_mean_length(ends: list[tuple[int, int]]) -> None:
    whole = sums(_round(k, a) for k, a in ends)
    places = by_position([(whole, 1)])
    reached = sum(place.reached for place in places)
    assert whole.acceptance_by_position == (sum(p.accepted for p in places) / reached if reached else None)
    chance = chance_for(whole.endings, whole.mgl or 1.0)
    assert chance is not None
    expected = sum(n * sum(chance**i for i in range(k + 1)) for k, _, n in whole.endings) / whole.rounds
    assert expected == pytest.approx(whole.mgl, rel=1e-6)


def _round(proposed: int, accepted: int) -> Round:
    times = dict.fromkeys(("draft_ns", "verify_ns", "rollback_ns", "sample_ns", "other_ns"), 1)
    return Round(proposed=proposed, accepted=accepted, committed=accepted + 1, rows=proposed + 1, **times)

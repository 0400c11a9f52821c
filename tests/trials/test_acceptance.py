import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.trials.acceptance import MEANINGS, Meaning, loop_of, mgl_of, rate_of


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

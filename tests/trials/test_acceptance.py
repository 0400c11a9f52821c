import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.trials.acceptance import MEANINGS, Meaning, by_position, histogram, mgl_of, rate_of, rates


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


def test_counts_give_shares_and_each_rounds_counts_the_chance_by_position() -> None:
    assert rates(6, 12, 9) == {"proposed": 0.5, "position": None, "output": 6 / 9}
    assert rates(0, 0, 0) == {"proposed": None, "position": None, "output": None}
    assert histogram([0, 4, 2]) == (1, 0, 1, 0, 1)
    assert by_position([4, 4, 4], [0, 4, 2]) == (2 / 3, 1.0, 0.5, 1.0)
    assert by_position([0, 1], [0, 1]) == (1.0,)
    assert mgl_of(0.5, "proposed", None) is None and mgl_of(0.5, "output", None) == 2.0

"""Sums of rounds and the rates that follow from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.records import Round, Trial
from mlsd.stats import Interval
from mlsd.trials.rates import PARTS, Sums, decode_tok_s, pays_from, prefill_tok_s, speed, sums

ROUNDS = st.lists(
    st.builds(lambda values: Round(**dict(zip(Round.__struct_fields__, values, strict=True))),
              st.lists(st.integers(0, 10**9), min_size=9, max_size=9))
)  # fmt: skip


@given(ROUNDS)
def test_the_parts_of_a_round_are_its_wall_time(rounds: list[Round]) -> None:
    found = sums(rounds)
    assert found.parts_ns == sum(one.wall_ns for one in rounds)
    assert found.rounds == len(rounds) and found.rows == sum(one.rows for one in rounds)
    assert set(found.ms_per_round) == ({part.removesuffix("_ns") for part in PARTS} if rounds else set())


def test_rates_follow_from_counts_and_times() -> None:
    found = Sums(rounds=10, proposed=40, accepted=25, committed=35, draft_ns=20_000_000)
    assert (found.acceptance_rate, found.mgl) == (0.625, 3.5)
    assert found.ms_per_round["draft"] == 2.0
    assert Sums().acceptance_rate is None and Sums().mgl is None
    assert decode_tok_s(11, 2 * 10**9) == 5.0
    assert decode_tok_s(1, 10**9) is None and decode_tok_s(11, None) is None
    trial = _trial(tokens=tuple(range(11)), decode_ns=10**9, n_prompt=50, prefill_ns=10**9)
    assert (speed(trial), prefill_tok_s(trial)) == (10.0, 50.0)


def test_a_later_first_token_is_paid_back_by_the_tokens_that_the_speedup_saves() -> None:
    # 100 ms later; a plain token takes 20 ms, a drafted one 16: 25 tokens after the first make up for it.
    ratio = Interval(value=1.25, low=1.2, high=1.3)
    found = pays_from([100.0] * 3, [0, 1, 2], 50.0, ratio)
    assert found is not None and found.value == pytest.approx(26.0)
    assert found.low == pytest.approx(1 + 5 / (1 - 1 / 1.3)) and found.high == pytest.approx(1 + 5 / (1 - 1 / 1.2))
    sooner = pays_from([-5.0], [0], 50.0, ratio)
    assert sooner is not None and (sooner.value, sooner.low) == (1.0, None)
    assert pays_from([100.0], [0], 50.0, Interval(value=0.9)) is None and pays_from([], [], 50.0, ratio) is None


def _trial(**fields: object) -> Trial:
    usual = {"case_id": "c", "arm": "sd", "gamma": 4, "block": 0, "repeat": 0, "position": 0}
    return Trial(**{**usual, "status": "ok", "started_at": "2026-01-01T00:00:00+00:00", **fields})  # type: ignore[arg-type]

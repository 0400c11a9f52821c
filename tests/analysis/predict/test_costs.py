"""Predicted tok/s against rounds made of known costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.analysis.advise.acceptance import outcomes_rate
from mlsd.analysis.predict.costs import (
    Costs,
    at_gamma,
    between,
    catch_up_rows,
    costs_from_arms,
    costs_from_points,
    draft_ms,
    mgl_of,
    outcomes,
    outcomes_cut,
    round_ms,
    tok_per_s,
)
from mlsd.analysis.predict.prediction_error import leave_one_gamma_out
from mlsd.errors import AnalysisError
from mlsd.store.rows import CalibrationPoint
from mlsd.trials.results import ArmResult, SessionPlan, arm_results
from tests.analysis.studies import MOE, as_measured, blocks

COSTS = Costs(
    verify_ms={1: 10.0, 2: 11.0, 5: 14.0, 9: 22.0, 17: 30.0},
    catch_up_ms={1: 1.0, 2: 1.5, 5: 2.0},
    step_ms=1.0,
    rest_ms={1: 0.1, 17: 0.3},
)
# What the rounds of `studies` take, stretched as if the calibration had run on a quieter machine.
STORED = Costs(
    verify_ms={k: 0.6 * (9 + k) for k in (1, 3, 5, 9, 17)}, catch_up_ms={1: 0.7}, step_ms=0.7, rest_ms={1: 0.1}
)


def arms(*gammas: int) -> list[ArmResult]:
    trials = blocks(MOE, prompts=("code",), gammas=gammas, alpha=0.75, n_predict=401)
    return arm_results(as_measured(trials), SessionPlan())


@given(alphas=st.lists(st.floats(0, 1), min_size=1, max_size=3), gamma=st.integers(1, 8), proposing=st.floats(0, 1))
def test_rounds_commit_what_the_formula_says(alphas: list[float], gamma: int, proposing: float) -> None:
    shares, mgl, survival = outcomes(alphas, gamma, proposing), 1.0, proposing
    for i in range(gamma):
        survival *= alphas[min(i, len(alphas) - 1)]
        mgl += survival
    assert sum(shares.values()) == pytest.approx(1)
    assert mgl_of(shares) == pytest.approx(mgl)
    if proposing == 0:
        assert tok_per_s(COSTS, shares) == pytest.approx(1e3 / 10.1), "what proposes nothing costs a plain pass"


@given(alphas=st.lists(st.floats(0, 1), min_size=1, max_size=9), gamma=st.integers(1, 8), wanted=st.integers(1, 8))
def test_rounds_at_a_shorter_gamma_are_those_of_a_longer_one_cut(alphas: list[float], gamma: int, wanted: int) -> None:
    ends = at_gamma(outcomes(alphas, gamma, 0.7), gamma, wanted)
    assert sum(ends.values()) == pytest.approx(1)
    if wanted <= gamma:
        expected = outcomes(alphas, wanted, 0.7)
        assert all(ends.get(end, 0.0) == pytest.approx(share, abs=1e-9) for end, share in expected.items())
    else:
        assert mgl_of(ends) >= mgl_of(outcomes(alphas, gamma, 0.7)) - 1e-9


def test_longer_drafts_go_on_with_the_chance_of_later_tokens() -> None:
    ends = at_gamma(outcomes((0.5, 0.9), 4), 4, 8)
    assert mgl_of(ends) == pytest.approx(mgl_of(outcomes((0.5, 0.9), 8)))
    early = {(2, 2): 0.4, (4, 4): 0.6}
    assert at_gamma(early, 4, 8)[2, 2] == 0.4, "what ended early ends there"


def test_no_acceptance_gives_no_outcomes() -> None:
    with pytest.raises(AnalysisError):
        outcomes([], 4)


@pytest.mark.parametrize("calibrated", [STORED, None])
def test_a_gamma_left_out_is_predicted_from_the_others(calibrated: Costs | None) -> None:
    predictions = leave_one_gamma_out(arms(1, 2, 4, 8, 16), calibrated)
    assert [p.gamma for p in predictions] == [1, 2, 4, 8, 16]
    assert max(abs(p.error) for p in predictions) < 0.06


def test_leaving_out_needs_something_left() -> None:
    for few in (arms(4), [arm for arm in arms(2, 4) if not arm.is_plain]):
        with pytest.raises(AnalysisError, match="plain decoding and at least two gammas"):
            leave_one_gamma_out(few, COSTS)


def test_rounds_of_trials_give_what_they_cost() -> None:
    costs = costs_from_arms(arms(2, 8))
    assert {k: round(ms, 1) for k, ms in costs.verify_ms.items()} == pytest.approx({1: 10, 3: 12, 9: 18}, rel=0.05)
    assert costs.step_ms == pytest.approx(1.0, rel=0.05)


def test_the_speedup_is_that_of_the_measured_cost_form() -> None:
    shares = outcomes([0.8, 0.6], 4)
    committed = sum(p * (a + 1) for (_, a), p in shares.items())
    drafting = sum(p * draft_ms(COSTS, k, a) for (k, a), p in shares.items())
    expected = committed * 10.1 / (drafting + 14.0 + between(COSTS.rest_ms, 5))
    plain = tok_per_s(COSTS, {(0, 0): 1.0})
    assert plain == pytest.approx(1e3 / 10.1)
    assert tok_per_s(COSTS, shares) / plain == pytest.approx(expected)
    assert round_ms(Costs(verify_ms=COSTS.verify_ms), 4, 2) == 14.0, "a method without a model drafts for nothing"


def test_curves_are_read_between_and_beyond_their_points() -> None:
    assert [between(COSTS.verify_ms, k) for k in (5, 7, 33)] == [14.0, pytest.approx(18.0), pytest.approx(46.0)]
    assert (between({1: 3.0}, 9), between({4: 3.0, 5: 9.0}, 1), between({}, 2)) == (3.0, 3.0, 0.0)


@pytest.mark.parametrize(
    ("accepted", "replays", "rows"), [(4, True, 2), (4, False, 2), (3, True, 1), (1, True, 2), (1, False, 1)]
)
def test_a_draft_takes_in_again_what_its_rollback_threw_away(accepted: int, replays: bool, rows: int) -> None:
    assert catch_up_rows(4, accepted, replays=replays) == rows


def test_costs_come_from_a_calibration() -> None:
    def point(key: str, kind: str, rows: int, ms: float, depth: int = 64) -> CalibrationPoint:
        return CalibrationPoint(
            model_key=key,
            kind=kind,  # type: ignore[arg-type]
            rows=rows,
            depth=depth,
            repeat=0,
            span_ns=round(ms * 1e6),
        )

    target = [point("t", "target_pass", k, 10 + k) for k in (1, 2, 5)]
    target += [point("t", "sample", k, 0.1) for k in (1, 2, 5)] + [point("t", "target_pass", 1, 99.0, depth=512)]
    draft = [point("d", "draft_step", 1, 2.0), point("d", "draft_step", 2, 3.0), point("d", "rollback", 5, 0.5)]
    costs = costs_from_points(target, draft)
    assert costs.verify_ms == {1: 11.0, 2: 12.0, 5: 15.0}
    assert (costs.step_ms, costs.replays) == (2.0, False)
    assert (costs.rest_ms[5], costs.rest_ms[2]) == (pytest.approx(0.6), pytest.approx(0.1))
    assert costs_from_points(target, [*draft, point("d", "checkpoint", 0, 0.1)]).replays
    with pytest.raises(AnalysisError, match="calibrate"):
        costs_from_points([])


@given(st.floats(0.5, 0.95), st.floats(0.1, 0.8), st.integers(1, 16))
def test_drafts_that_an_unsure_token_ends_keep_the_rate_and_are_no_longer_than_gamma(
    rate: float, p_min: float, gamma: int
) -> None:
    ends = outcomes_cut(rate, p_min, p_min / 2 + (rate - p_min / 2) * 0.8, gamma)
    assert sum(ends.values()) == pytest.approx(1) and 1 <= mgl_of(ends) <= gamma + 1
    assert outcomes_rate(ends) == pytest.approx(rate, abs=0.03), "on a grid of a hundred"


def test_how_long_cut_drafts_are_follows_from_their_rate_and_how_often_a_token_is_right() -> None:
    """168 of 226 in an answer of 256 tokens are MGL 2.91, far from the 12.9 of drafts that all had 16 tokens."""
    ends = outcomes_cut(168 / 226, 0.75, 0.77, 16)
    assert mgl_of(ends) == pytest.approx(2.91, rel=0.05)

"""Predicted tok/s against rounds made of known costs."""

from __future__ import annotations

import numpy as np
import pytest

from mlsd.analysis.predict.outcomes import outcomes_from_alphas
from mlsd.analysis.predict.predict import (
    Costs,
    MeasuredGamma,
    between,
    catch_up_rows,
    costs_from_points,
    draft_ms,
    leave_one_gamma_out,
    round_ms,
    tok_per_s,
)
from mlsd.errors import AnalysisError
from mlsd.records import Round
from mlsd.store.rows import CalibrationPoint
from tests.analysis.predict.test_outcomes import rounds_of

COSTS = Costs(
    verify_ms={1: 10.0, 2: 11.0, 5: 14.0, 9: 22.0, 17: 30.0},
    catch_up_ms={1: 1.0, 2: 1.5, 5: 2.0},
    step_ms=1.0,
    rest_ms={1: 0.1, 17: 0.3},
)


def made_arm(right: list[bool], gamma: int, load: float, seed: int) -> MeasuredGamma:
    """Trials of a draft that is right where `right` says, with `COSTS` stretched by a load and a little noise."""
    rng = np.random.default_rng(seed)
    trials, speeds = [], []
    for _ in range(3):
        factor = load * (1 + 0.01 * rng.standard_normal())
        rounds = [
            Round(
                proposed=r.proposed,
                accepted=r.accepted,
                committed=r.committed,
                rows=r.rows,
                draft_ns=round(1e6 * factor * draft_ms(COSTS, r.proposed, r.accepted)),
                verify_ns=round(1e6 * factor * between(COSTS.verify_ms, r.proposed + 1)),
                rollback_ns=0,
                sample_ns=round(1e6 * between(COSTS.rest_ms, r.proposed + 1)),
                other_ns=0,
            )
            for r in rounds_of(right, gamma)
        ]
        trials.append(tuple(rounds))
        speeds.append((len(right) - 1) / (sum(r.wall_ns for r in rounds) / 1e9))
    return MeasuredGamma(gamma=gamma, rounds=tuple(trials), tok_s=tuple(speeds))


def test_a_gamma_left_out_is_predicted_from_the_others() -> None:
    rng = np.random.default_rng(5)
    right = [bool(x) for x in rng.random(400) < 0.75]
    arms = [made_arm(right, gamma, load=1.7, seed=gamma) for gamma in (0, 1, 2, 4, 8, 16)]
    found = leave_one_gamma_out(arms, COSTS)
    assert [p.gamma for p in found] == [1, 2, 4, 8, 16]
    assert max(abs(p.error) for p in found) < 0.05
    for p in found:
        assert p.predicted_mgl == p.measured_mgl
        assert p.spread is not None


def test_leaving_out_needs_something_left() -> None:
    arms = [made_arm([True] * 50, gamma, 1.0, 0) for gamma in (0, 4)]
    with pytest.raises(AnalysisError, match="two gammas"):
        leave_one_gamma_out(arms, COSTS)
    with pytest.raises(AnalysisError, match="plain"):
        leave_one_gamma_out([made_arm([True] * 50, gamma, 1.0, 0) for gamma in (2, 4)], COSTS)


def test_the_speedup_is_that_of_the_measured_cost_form() -> None:
    shares = outcomes_from_alphas([0.8, 0.6], 4)
    committed = sum(p * (a + 1) for (_, a), p in shares.items())
    drafting = sum(p * draft_ms(COSTS, k, a) for (k, a), p in shares.items())
    expected = committed * 10.1 / (drafting + 14.0 + between(COSTS.rest_ms, 5))
    plain = tok_per_s(COSTS, {(0, 0): 1.0})
    assert plain == pytest.approx(1e3 / 10.1)
    assert tok_per_s(COSTS, shares) / plain == pytest.approx(expected)


def test_curves_are_read_between_and_beyond_their_points() -> None:
    assert between(COSTS.verify_ms, 5) == 14.0
    assert between(COSTS.verify_ms, 7) == pytest.approx(18.0)
    assert between(COSTS.verify_ms, 33) == pytest.approx(46.0)
    assert between({1: 3.0}, 9) == 3.0


def test_a_draft_takes_in_again_what_its_rollback_threw_away() -> None:
    assert catch_up_rows(4, 4, replays=True) == catch_up_rows(4, 4, replays=False) == 2
    assert catch_up_rows(4, 3, replays=True) == 1  # nothing it decoded was wrong
    assert catch_up_rows(4, 1, replays=True) == 2
    assert catch_up_rows(4, 1, replays=False) == 1


def test_a_method_without_a_model_drafts_for_nothing() -> None:
    lookup = Costs(verify_ms=COSTS.verify_ms)
    assert round_ms(lookup, 4, 2) == 14.0


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
    assert costs.step_ms == 2.0
    assert not costs.replays
    assert costs.rest_ms[5] == pytest.approx(0.6)
    assert costs.rest_ms[2] == pytest.approx(0.1)
    assert costs_from_points(target, [*draft, point("d", "checkpoint", 0, 0.1)]).replays
    with pytest.raises(AnalysisError, match="calibrate"):
        costs_from_points([])

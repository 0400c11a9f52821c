from collections import Counter

import numpy as np
import pytest

from mlsd.analysis.fits import fit_models
from mlsd.analysis.fits.fit import Model, Observations, fit, folds, held_out, observations, select, solve
from mlsd.errors import AnalysisError
from tests.analysis.simulated import (
    CURVES,
    ROWS,
    SPEEDUPS,
    Truth,
    curve_data,
    speedup_data,
)

REPEATS = 100
# Of the size of the embedded model: its bytes are a small part of a pass.
FEW_EXPERTS = fit_models.ExpertShape(n_experts=8, n_used=2, always_bytes=1e6, expert_bytes=2e5)


def data_of(truth: Truth, seed: int) -> Observations:
    return curve_data(truth, seed) if truth in CURVES else speedup_data(truth, seed)


# --- known answers ----------------------------------------------------------------------------------------------

MIXTURE = fit_models.ExpertShape(n_experts=4, n_used=2, always_bytes=1e9, expert_bytes=1e9)
GAMMA, LOOP = np.array([1.0, 16.0]), {"mgl": [2.55], "draft_ratio": [1.55], "verify_ratio": [1.0]}


@pytest.mark.parametrize(
    ("model", "values", "columns", "expected"),
    [
        (fit_models.constant(), {"t_one_ms": 3}, {"rows": [1.0, 5.0]}, [3, 3]),
        (fit_models.linear(), {"fixed_ms": 3, "per_row_ms": 2}, {"rows": [1, 5]}, [5, 13]),
        (  # flat up to the ridge
            fit_models.roofline(1e9, 1.0),
            {"fixed_ms": 2, "bandwidth_gb_s": 100, "rate_gflop_s": 1000},
            {"rows": [1, 10, 11, 33]},
            [12, 12, 13, 35],
        ),
        (
            fit_models.stepped([2, 9]),
            {"fixed_ms": 5, "per_row_ms": 0.5, "jump_2_ms": 3, "jump_9_ms": -1},
            {"rows": [1, 2, 8, 9]},
            [5.5, 9, 12, 11.5],
        ),
        (  # experts touched are read once
            fit_models.moe(
                fit_models.ExpertShape(n_experts=4, n_used=2, always_bytes=1e9, expert_bytes=1e9), correlated=False
            ),
            {"fixed_ms": 1, "bandwidth_gb_s": 100, "per_row_ms": 0.25},
            {"rows": [1, 2]},
            [31.25, 41.5],
        ),
        (fit_models.classical(), {"alpha": 0.5, "draft_cost": 0.5}, {"gamma": GAMMA[:1]}, [1]),
        # A draft that is never right, at 5 T(1) of drafting: twice as fast, says the study's form.
        (fit_models.batch_published(), {"pass_cost": 3, "token_cost": 5 / 16}, {"gamma": GAMMA[1:]}, [2]),
        # The worked example of the small-model study: 16.6 ms of drafting, 10.7 of verification break even at 2.55.
        (fit_models.overhead(), {"draft_cost": 1.55}, {"gamma": GAMMA[:1], "mgl": 2.55}, [1]),
        (fit_models.measured_cost(), {"rest_cost": 0}, LOOP, [1]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_model_is_its_formula(model: Model, values: dict, columns: dict, expected: list[float]) -> None:
    found = model.predict(values, {name: np.asarray(column) for name, column in columns.items()})
    assert found == pytest.approx(np.array(expected))


@pytest.mark.parametrize("truth", CURVES + SPEEDUPS, ids=lambda truth: truth.model.name)
def test_noiseless_data_give_the_true_parameters_back(truth: Truth) -> None:
    clean = data_of(truth, 0)
    exact = observations(truth.model.predict(truth.values, clean.columns), clean.blocks, **dict(clean.columns))
    assert solve(truth.model, exact)[0] == pytest.approx(truth.values, rel=2e-3)


@pytest.mark.heavy
def test_intervals_hold_the_truth_in_95_of_100_repeats() -> None:
    held: dict[str, list[float]] = {}
    for number, truth in enumerate(CURVES + SPEEDUPS):
        inside: dict[str, list[bool]] = {name: [] for name in truth.values}
        for seed in range(1000 * number, 1000 * number + REPEATS):
            fitted = fit(truth.model, data_of(truth, seed))
            for name, value in truth.values.items():
                estimate = fitted.estimates[name]
                if estimate.low is not None and estimate.high is not None:
                    inside[name].append(estimate.low <= value <= estimate.high)
        assert all(len(hits) >= 0.9 * REPEATS for hits in inside.values()), "noise may hide a parameter, but seldom"
        held[truth.model.name] = [100 * float(np.mean(hits)) for hits in inside.values()]
    every = [count for counts in held.values() for count in counts]
    # One count of a true 95 has a standard deviation of 2.2 by chance alone, the mean over all parameters of 0.6.
    assert 93 <= np.mean(every) <= 97, held
    assert all(90 <= np.mean(counts) <= 99 for counts in held.values()), held


def chosen_of(truth: Truth, seed: int) -> str:
    if truth in CURVES:
        data, models = curve_data(truth, seed, n_blocks=8), [other.model for other in CURVES]
        return select(models, folds(data, data.columns["rows"], never=(1,), n_folds=3)).chosen
    data = speedup_data(truth, seed)
    return select(fit_models.speedup_models(), folds(data, data.columns["gamma"], n_folds=3)).chosen


@pytest.mark.heavy
@pytest.mark.parametrize("truth", CURVES + SPEEDUPS, ids=lambda truth: truth.model.name)
def test_the_true_model_is_selected_by_what_it_predicts(truth: Truth) -> None:
    chosen = Counter(chosen_of(truth, seed) for seed in range(30))
    assert chosen[truth.model.name] >= 27, chosen


def test_the_published_batch_form_misses_an_honest_loop_eightfold_as_far_as_the_measured_one() -> None:
    data = speedup_data(SPEEDUPS[-1], seed=3)
    selection = select(fit_models.speedup_models(), folds(data, data.columns["gamma"]))
    error = {candidate.model: candidate.median_error for candidate in selection.candidates}
    assert selection.chosen == "corrected"
    assert error["corrected"] < 0.02  # the noise of the speedups themselves
    assert error["equation 2"] > 8 * error["corrected"]
    assert 0.10 < error["equation 2"] < 0.30


# --- what a fit reports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", CURVES, ids=lambda truth: truth.model.name)
def test_data_made_with_every_parameter_identify_them_all(truth: Truth) -> None:
    assert fit(truth.model, curve_data(truth, 0)).not_identified == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_line_does_not_identify_the_experts_that_a_pass_reads_and_gives_their_parameters_no_interval(
    seed: int,
) -> None:
    fitted = fit(fit_models.moe(FEW_EXPERTS, correlated=True), curve_data(CURVES[1], seed))
    assert {"bandwidth_gb_s", "correlation"} <= set(fitted.not_identified)
    assert all(fitted.estimates[name].low is None for name in fitted.not_identified)
    assert fitted.relative_error < 0.03, "what it predicts holds"


def test_a_bandwidth_without_end_is_not_identified() -> None:
    """Passes that cost more than a line with every row: the fit takes all that reading weights costs away."""
    rows = np.tile([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], 4)
    data = observations(1 + rows + 0.002 * rows**2, np.repeat(np.arange(4), 6), rows=rows)
    assert fit(fit_models.moe(FEW_EXPERTS, correlated=False), data).not_identified == ("bandwidth_gb_s",)


def test_a_parameter_at_its_bound_is_that_bound_and_named() -> None:
    rows = np.tile([1.0, 2.0, 4.0, 8.0], 4)
    fitted = fit(fit_models.linear(), observations(10 - 0.2 * rows, np.repeat(np.arange(4), 4), rows=rows))
    assert fitted.at_bound == ("per_row_ms",) and fitted.values["per_row_ms"] == 0.0
    assert fit(CURVES[1].model, curve_data(CURVES[1], 0)).at_bound == ()


def test_two_blocks_give_estimates_without_intervals() -> None:
    rows = np.tile([1.0, 2.0, 4.0, 8.0], 2)
    fitted = fit(fit_models.linear(), observations(10 + rows, [0] * 4 + [1] * 4, rows=rows))
    assert fitted.estimates["per_row_ms"].value == pytest.approx(1.0, rel=1e-4)
    assert fitted.estimates["per_row_ms"].low is None
    assert fitted.n_blocks == 2


def test_intervals_come_from_blocks_not_rows() -> None:
    rng = np.random.default_rng(9)
    rows, blocks = np.tile(ROWS, 10), np.repeat(np.arange(10), len(ROWS))
    times = 10.0 * np.exp(rng.normal(0, 0.1, 10)[blocks] + rng.normal(0, 0.001, len(rows)))
    by_block = fit(fit_models.constant(), observations(times, blocks, rows=rows)).estimates["t_one_ms"]
    by_row = fit(fit_models.constant(), observations(times, np.arange(len(rows)), rows=rows)).estimates["t_one_ms"]
    assert by_block.high - by_block.low > 3 * (by_row.high - by_row.low)


def test_held_out_predictions_are_made_without_the_rows_they_predict() -> None:
    rows, blocks = np.tile([1.0, 2.0, 3.0, 4.0], 4), np.repeat(np.arange(4), 4)
    times = np.where(rows == 4, 100.0, 10.0 + rows)
    result = held_out(fit_models.linear(), folds(observations(times, blocks, rows=rows), rows, never=(1,), n_folds=3))
    at_four = [p for p, o in zip(result.predicted, result.observed, strict=True) if o == 100.0]
    assert at_four == pytest.approx([14.0] * 4, rel=1e-3)
    assert result.n_rows == 12


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: observations([], []), "nothing to fit"),
        (lambda: observations([1.0, np.nan, -1.0], [0, 0, 0]), "nothing to fit"),
        (lambda: fit(fit_models.linear(), observations([1.0, 2.0], [0, 1], rows=[1, 2])), "2 rows cannot fit"),
        (lambda: folds(observations([1.0, 2.0], [0, 1], rows=[1, 2]), [1, 1]), "two differ"),
    ],
)
def test_data_that_cannot_answer_are_refused(call, message: str) -> None:
    with pytest.raises(AnalysisError, match=message):
        call()

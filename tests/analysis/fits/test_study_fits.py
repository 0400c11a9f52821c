from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mlsd.analysis import frames
from mlsd.analysis.fits.fit import observations
from mlsd.analysis.fits.study_fits import expected_rounds, expert_shape, fit_curves, fit_pairs
from mlsd.analysis.pairs import PairedTrials
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, ModelRef
from mlsd.report.tables.results import model_table
from tests.analysis.fits.test_calibration import points
from tests.analysis.pair_studies import Arm, Study, read_study, write_study

GAMMAS = (1, 2, 4, 6, 8)


def test_a_study_of_an_honest_loop_is_predicted_by_its_measured_costs(tmp_path: Path) -> None:
    found = fit_pairs(read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=GAMMAS),)))))[0]
    assert found.chosen == "corrected"
    error = {e.model: e.median_error for e in found.held_out_gamma}
    assert error["corrected"] < 0.05  # from acceptance and costs of other gammas
    assert error["equation 2"] > 2 * error["corrected"]
    assert {e.model for e in found.held_out_prompt} == set(error)
    assert found.n_trials == len(GAMMAS) * 12
    assert len(found.trials) == (len(GAMMAS) + 1) * 12


def test_pairs_that_differ_in_an_option_alone_have_names_of_their_own(tmp_path: Path) -> None:
    arms = tuple(Arm(gammas=(4,), options={"p_min": p_min}) for p_min in (0.3, 0.6))
    found = fit_pairs(read_study(write_study(tmp_path / "s.sqlite", Study(arms=arms))))
    assert [one.pair for one in found] == ["dense + small (p_min 0.3)", "dense + small (p_min 0.6)"]


def test_a_thin_group_is_named_and_ends_no_other_fit(tmp_path: Path) -> None:
    """Two trials cannot fit two parameters; what was measured enough is fitted all the same."""
    study = Study(arms=(Arm(gammas=GAMMAS), Arm(draft="large", gammas=(4,))))
    paired = read_study(write_study(tmp_path / "s.sqlite", study))
    large = paired.pairs["draft"] == "large"
    little, full = fit_pairs(replace(paired, pairs=paired.pairs[~large | (large.cumsum() <= 2)]))
    assert full.chosen == "corrected" and full.doubt is None
    assert little.pair == "dense + large" and little.chosen is None and little.doubt is not None
    note = model_table([full, little], []).note
    assert "dense + large" in note and "dense + small" not in note


def test_a_group_left_with_too_few_rows_when_some_are_held_out_is_named(tmp_path: Path) -> None:
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=(2, 4, 8)),), prompts=("code",))))
    (found,) = fit_pairs(replace(paired, pairs=paired.pairs.drop_duplicates("gamma")))
    assert found.doubt is not None and "2 rows cannot fit" in found.doubt


def test_estimates_stand_beside_what_was_measured(tmp_path: Path) -> None:
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=GAMMAS),))))
    (found,) = fit_pairs(paired)
    assert found.measured["alpha"] == paired.pairs["accepted"].sum() / paired.pairs["proposed"].sum()
    assert found.measured["draft_cost"] == pytest.approx(0.1, rel=0.02)  # 1 ms a token, of 10 ms a plain pass


def test_an_estimate_that_excludes_what_was_measured_is_remarked_on(tmp_path: Path) -> None:
    (found,) = fit_pairs(read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=GAMMAS),)))))
    wrong = msgspec.structs.replace(found, measured={**found.measured, "rest_cost": 7.0})
    shown = [cell.text for row in model_table([wrong], []).rows for cell in row if "rest_cost 7" in cell.text]
    assert shown == ["rest_cost 7.000 (outside the estimate's interval)"]


def test_what_is_held_out_is_predicted_without_a_look_at_it() -> None:
    """Gammas, acceptance and costs of rows that were seen are all that any model is given of the others."""
    gamma, alpha = np.array([1.0, 2.0, 4.0, 8.0]), 0.6
    mgl = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    columns = {"gamma": gamma, "mgl": mgl, "draft_ratio": 0.1 * gamma, "verify_ratio": 1 + 0.02 * gamma}
    data = observations(mgl / (1 + 0.12 * gamma), np.arange(4), **columns)
    seen, unseen = data.where(gamma != 4), data.where(gamma == 4)
    found = expected_rounds(seen, unseen)
    for name, values in unseen.columns.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name
    other = observations([9.0], [0], gamma=[4.0], mgl=[5.0], draft_ratio=[3.0], verify_ratio=[7.0])
    assert {name: list(values) for name, values in expected_rounds(seen, other).items()} == {
        name: list(values) for name, values in found.items()
    }


def test_the_model_that_is_said_to_predict_best_has_the_least_printed_error(tmp_path: Path) -> None:
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=GAMMAS),))))
    shown = model_table(fit_pairs(paired), [])
    error, choice = ([h.label for h in shown.heads].index(label) for label in ("held-out error", "choice"))
    best = min(shown.rows, key=lambda row: float(str(row[error].sort)))
    assert best[choice].text == "predicts best"


def test_t_of_k_from_calibration_finds_kernel_steps() -> None:
    timed = points({k: 5.0 + 0.1 * k + 2.0 * (k >= 2) + 3.0 * (k >= 9) for k in range(1, 25)}, repeats=8)
    curve = fit_curves({"m": timed}, {}, peak_gb_s=100.0)[0]
    assert curve.chosen == "stepped"
    assert {"jump_2_ms", "jump_9_ms"} <= set(next(f for f in curve.fits if f.model == "stepped").values)


def test_six_widths_of_a_roofline_choose_no_curve_and_name_the_widths_that_decide() -> None:
    timed = points({k: max(10.0, 21.5 * k / 17) for k in (1, 2, 3, 5, 9, 17)}, repeats=6)
    curve = fit_curves({"m": timed}, {})[0]
    assert curve.chosen is None
    assert curve.doubt is not None and "6 widths" in curve.doubt
    assert {4, 6, 8, 12} <= set(curve.time_next) and max(curve.time_next) <= 17


def test_bandwidth_is_given_as_a_share_of_the_peak() -> None:
    facts = ModelFacts(ref=ModelRef(id="m"), architecture="qwen2", active_bytes=10**9, n_parameters_active=10**9)
    timed = points({k: 2.0 + max(20.0, 2.0 * k) for k in range(1, 33)}, repeats=8)
    curve = fit_curves({"m": timed}, {"m": facts}, peak_gb_s=100.0)[0]
    assert curve.chosen == "roofline"
    assert curve.bandwidth_gb_s == pytest.approx(50.0, rel=0.05)
    assert curve.peak_fraction == pytest.approx(0.5, rel=0.05)


def test_expert_bytes_follow_from_all_and_active_weights() -> None:
    known = {"n_experts": 16, "n_experts_used": 4, "weight_bytes": 1_000 + 16 * 50, "active_bytes": 1_000 + 4 * 50}
    facts = ModelFacts(ref=ModelRef(id="m"), architecture="qwen35moe", **known)
    shape = expert_shape(facts)
    assert shape is not None
    assert (shape.always_bytes, shape.expert_bytes) == (1_000, 50)
    assert expert_shape(ModelFacts(ref=ModelRef(id="m"), architecture="qwen2")) is None


def test_a_study_without_pairs_says_what_to_run() -> None:
    with pytest.raises(AnalysisError, match="mlsd run"):
        fit_pairs(PairedTrials(pairs=frames.pairs((), {}), plain=frames.pairs((), {})))

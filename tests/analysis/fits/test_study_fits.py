from pathlib import Path

import pytest

from mlsd.analysis.fits.study_fits import expert_shape, fit_curves, fit_pairs, held_out_targets
from mlsd.analysis.results.paired_trials import PairedTrials
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, ModelRef
from tests.analysis.fits.test_calibration import points
from tests.analysis.pair_studies import Arm, Study, read_study, write_study

GAMMAS = (1, 2, 4, 6, 8)


def test_a_study_of_an_honest_loop_is_predicted_by_its_measured_costs(tmp_path: Path) -> None:
    found = fit_pairs(read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=GAMMAS),)))))[0]
    assert found.chosen == "measured-cost"
    error = {e.model: e.median_error for e in found.held_out_gamma}
    assert error["measured-cost"] < 0.02
    assert error["batch-published"] > 4 * error["measured-cost"]
    assert {e.model for e in found.held_out_prompt} == set(error)
    assert found.n_trials == len(GAMMAS) * 12
    assert len(found.trials) == (len(GAMMAS) + 1) * 12


def test_pairs_that_differ_in_an_option_alone_have_names_of_their_own(tmp_path: Path) -> None:
    arms = tuple(Arm(gammas=(4,), options={"p_min": p_min}) for p_min in (0.3, 0.6))
    found = fit_pairs(read_study(write_study(tmp_path / "s.sqlite", Study(arms=arms))))
    assert [one.pair for one in found] == ["dense + small (p_min 0.3)", "dense + small (p_min 0.6)"]


def test_a_target_is_predicted_from_the_others(tmp_path: Path) -> None:
    study = Study(arms=(Arm(gammas=GAMMAS), Arm(target="moe", per_row=0.1, alpha=0.5, gammas=GAMMAS)))
    both = read_study(write_study(tmp_path / "s.sqlite", study))
    assert held_out_targets(both)[0].model == "measured-cost"
    assert held_out_targets(PairedTrials(pairs=both.pairs[:5], models={})) == []


def test_t_of_k_from_rounds_gives_the_line_it_was_made_with(tmp_path: Path) -> None:
    found = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=GAMMAS, alpha=0.05),))))
    curve = fit_curves(found, ["dense"], {})[0]
    assert (curve.source, curve.chosen) == ("rounds", "linear")
    line = next(f for f in curve.fits if f.model == "linear")
    assert line.values["per_row_ms"] == pytest.approx(0.2, rel=0.1)


def test_t_of_k_from_calibration_finds_kernel_steps() -> None:
    timed = points({k: 5.0 + 0.1 * k + 2.0 * (k >= 2) + 3.0 * (k >= 9) for k in range(1, 25)}, repeats=8)
    curve = fit_curves(PairedTrials(pairs=(), models={}), ["m"], {"m": timed}, peak_gb_s=100.0)[0]
    assert (curve.source, curve.chosen) == ("calibration", "stepped")
    assert {"jump_2_ms", "jump_9_ms"} <= set(next(f for f in curve.fits if f.model == "stepped").values)


def test_six_widths_of_a_roofline_choose_no_curve_and_name_the_widths_that_decide() -> None:
    timed = points({k: max(10.0, 21.5 * k / 17) for k in (1, 2, 3, 5, 9, 17)}, repeats=6)
    curve = fit_curves(PairedTrials(pairs=(), models={}), ["m"], {"m": timed})[0]
    assert curve.chosen is None
    assert curve.doubt is not None and "6 widths" in curve.doubt
    assert {4, 6, 8, 12} <= set(curve.time_next) and max(curve.time_next) <= 17


def test_bandwidth_is_given_as_a_share_of_the_peak() -> None:
    facts = ModelFacts(ref=ModelRef(id="m"), architecture="qwen2", active_bytes=10**9, n_parameters_active=10**9)
    timed = points({k: 2.0 + max(20.0, 2.0 * k) for k in range(1, 33)}, repeats=8)
    curve = fit_curves(PairedTrials(pairs=(), models={"m": facts}), ["m"], {"m": timed}, peak_gb_s=100.0)[0]
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
        fit_pairs(PairedTrials(pairs=(), models={}))

"""One machine at a time, one kind of a model at a time, and what is left out is said."""

from pathlib import Path

import pytest

import mlsd
from mlsd.analysis.study.study import attempt
from mlsd.errors import AnalysisError
from tests.analysis.studies import MOE, case, failed, trial, whole_study, write


def test_an_empty_study_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="holds no trials"):
        mlsd.open_study(write(tmp_path / "s.sqlite", []))


@pytest.mark.slow
def test_a_whole_study_gives_fits_claims_and_an_audit(tmp_path: Path) -> None:
    study = mlsd.open_study(whole_study(tmp_path / "s.sqlite"))
    assert {fit.target for fit in study.pair_fits} == {"tiny-moe-q4_0", "tiny-dense"}
    assert study.curve_fits == [], "no pass was timed apart from the trials"
    assert any(verdict.decision == "does not hold here" for verdict in study.verdicts)
    doubted = {(row.verdict, row.identity["label"]) for row in study.audit.rows if row.verdict != "possible"}
    invalid = study.trials.loc[study.trials["reason"] == "the output differs", "trial_id"].iloc[0]
    assert doubted == {("suspicious", f"trial {invalid}")}


def test_what_cannot_be_answered_is_a_reason(tmp_path: Path) -> None:
    of = case(MOE, "code", 4)
    study = mlsd.open_study(write(tmp_path / "s.sqlite", [(of, failed(of, 1))]))
    value, reason = attempt(lambda: study.pair_fits)
    assert value is None
    assert "No valid speculative trial" in reason


def test_trials_stored_without_a_profile_have_none(tmp_path: Path) -> None:
    of = case(MOE, "code")
    assert mlsd.open_study(write(tmp_path / "s.sqlite", [(of, trial(of, 1, 0, 0))], profile=None)).profile is None

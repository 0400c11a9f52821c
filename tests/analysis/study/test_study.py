"""One machine at a time, one kind of a model at a time, and what is left out is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.study.study import Study, attempt, read_study
from mlsd.errors import AnalysisError
from mlsd.measure.store.store import Store
from tests.analysis.studies import MACHINE, MOE, case, failed, trial, whole_study, write

OTHER = msgspec.structs.replace(MACHINE, host="b" * 16, chip="Apple M3")


def read(path: Path, machine: str | None = None) -> Study:
    with Store.open(path, read_only=True) as store:
        return read_study(store, machine)


def test_an_empty_study_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="holds no trials"):
        read(write(tmp_path / "s.sqlite", []))


def test_a_whole_study_gives_fits_claims_and_an_audit(tmp_path: Path) -> None:
    study = read(whole_study(tmp_path / "s.sqlite"))
    assert {fit.target for fit in study.pair_fits} == {"tiny-moe-q4_0", "tiny-dense"}
    assert {fit.target for fit in study.curve_fits} == {"tiny-moe-q4_0", "tiny-dense"}
    assert any(verdict.decision == "does not hold here" for verdict in study.claims)
    doubted = {(row.verdict, row.identity["label"]) for row in study.audit.rows if row.verdict != "possible"}
    invalid = study.trials.loc[study.trials["invalid_reason"] == "the output differs", "trial_id"].iloc[0]
    assert doubted == {("suspicious", f"trial {invalid}")}


def test_what_cannot_be_answered_is_a_reason(tmp_path: Path) -> None:
    of = case(MOE, "code", 4)
    study = read(write(tmp_path / "s.sqlite", [(of, failed(of, 1))]))
    value, reason = attempt(lambda: study.pair_fits)
    assert value is None
    assert "No valid speculative trial" in reason


def test_trials_stored_without_a_profile_have_none(tmp_path: Path) -> None:
    of = case(MOE, "code")
    assert read(write(tmp_path / "s.sqlite", [(of, trial(of, 1, 0, 0))], profile=None)).profile is None

"""One machine at a time, one kind of a model at a time, and what is left out is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.study.study import Study, attempt, read_study
from mlsd.errors import AnalysisError
from mlsd.measure.store.rows import environment_key
from mlsd.measure.store.study import Store
from mlsd.records import EngineOptions
from tests.analysis.studies import MACHINE, MOE, blocks, case, failed, trial, whole_study, write

OTHER = msgspec.structs.replace(MACHINE, host="b" * 16, chip="Apple M3")


def read(path: Path, machine: str | None = None) -> Study:
    with Store.open(path, read_only=True) as store:
        return read_study(store, machine)


def test_the_machine_of_the_latest_run_is_reported_and_the_other_named(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    write(path, blocks(MOE))
    write(path, blocks(MOE, gammas=(4,)), OTHER)
    study = read(path)
    assert (len(study.trials), study.environment.chip) == (24, "Apple M3")
    assert "48 trials of another machine or build (Apple M2" in study.notes[0]
    assert environment_key(MACHINE) in study.notes[0]
    assert len(read(path, environment_key(MACHINE)[:6]).trials) == 48


def test_an_unknown_machine_lists_those_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE))
    with pytest.raises(AnalysisError, match="No machine") as caught:
        read(path, "zzz")
    assert environment_key(MACHINE) in caught.value.hint


def test_one_id_with_two_kinds_of_files_stands_apart(tmp_path: Path) -> None:
    made = blocks(MOE, gammas=(4,)) + blocks(MOE, gammas=(4,), engine=EngineOptions(n_threads=7))
    study = read(write(tmp_path / "s.sqlite", made))
    assert study.trials["target"].nunique() == 2
    assert any("different files, samplings or engine options" in note for note in study.notes)
    assert len(study.by_arm) == 2
    assert set(study.trials["target"]) <= set(study.facts)


def test_an_empty_study_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="holds no trials"):
        read(write(tmp_path / "s.sqlite", []))


def test_a_whole_study_gives_fits_claims_and_an_audit(tmp_path: Path) -> None:
    study = read(whole_study(tmp_path / "s.sqlite"))
    assert {fit.target for fit in study.pair_fits} == {"tiny-moe-q4_0", "tiny-dense"}
    assert {fit.target for fit in study.curve_fits} == {"tiny-moe-q4_0", "tiny-dense"}
    assert any(verdict.decision == "refuted" for verdict in study.claims)
    doubted = {(row.verdict, row.identity["label"]) for row in study.audit.rows if row.verdict != "possible"}
    invalid = study.trials.loc[study.trials["invalid_reason"] == "the output differs", "trial_id"].iloc[0]
    assert doubted == {("suspicious", f"trial {invalid}")}


def test_what_cannot_be_answered_is_a_reason(tmp_path: Path) -> None:
    of = case(MOE, "code", 4)
    study = read(write(tmp_path / "s.sqlite", [(of, failed(of, 1))]))
    value, reason = attempt(lambda: study.pair_fits)
    assert value is None
    assert "No valid SD trial" in reason


def test_trials_stored_without_a_profile_have_none(tmp_path: Path) -> None:
    of = case(MOE, "code")
    assert read(write(tmp_path / "s.sqlite", [(of, trial(of, 1, 0, 0))], profile=None)).profile is None

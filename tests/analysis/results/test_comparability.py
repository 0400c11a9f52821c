"""One policy on what may stand beside each other, the same for every reader."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mlsd.analysis.predict.evidence import read_evidence
from mlsd.analysis.results.comparability import Chosen, choose, settings_key
from mlsd.analysis.study.study import Study, read_study
from mlsd.cli.main import cli
from mlsd.errors import AnalysisError
from mlsd.records import Case, EngineOptions, Sampling, Trial
from mlsd.store.rows import environment_key
from mlsd.store.sessions import as_stored
from mlsd.store.store import Store
from mlsd.trials.results import SessionPlan
from tests.analysis.studies import DRAFT, MACHINE, MOE, blocks, case, write

OTHER = msgspec.structs.replace(MACHINE, host="b" * 16, chip="Apple M3")
THREADS = EngineOptions(n_threads=7)
Made = list[tuple[Case, Trial]]


def chosen_of(path: Path, machine: str | None = None, settings: str | None = None) -> Chosen:
    with Store.open(path, read_only=True) as store:
        return choose(store, machine, settings)


def study_of(path: Path, machine: str | None = None, settings: str | None = None) -> Study:
    with Store.open(path, read_only=True) as store:
        return read_study(store, machine, settings)


def ask(*arguments: str) -> object:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def two_machines(tmp_path: Path) -> Path:
    """Slow drafting on the first machine, fast on the second and latest."""
    path = tmp_path / "s.sqlite"
    write(path, blocks(MOE, alpha=0.0, prompts=("factual", "code", "reasoning")))
    return write(path, blocks(MOE, alpha=0.9, gammas=(4,)), OTHER)


@pytest.fixture
def half_changed(tmp_path: Path) -> Path:
    """Suite B whose second half ran with another number of threads."""
    first, second = ("factual", "code", "reasoning"), ("chinese", "prose", "poem")
    made = blocks(MOE, alpha=0.0, prompts=first) + blocks(MOE, alpha=0.9, prompts=second, engine=THREADS)
    return write(tmp_path / "s.sqlite", made)


def test_the_latest_machine_counts_and_the_other_is_named_with_its_key(two_machines: Path) -> None:
    chosen = chosen_of(two_machines)
    assert chosen.environment.chip == "Apple M3"
    (note,) = chosen.notes
    assert "36 trials of another machine or build (Apple M2" in note
    assert f"--machine {environment_key(MACHINE)}" in note
    assert chosen_of(two_machines, environment_key(MACHINE)[:6]).environment.chip == "Apple M2"
    with pytest.raises(AnalysisError, match="No machine") as caught:
        chosen_of(two_machines, "zzz")
    assert environment_key(MACHINE) in caught.value.hint


@pytest.mark.slow
def test_every_reader_takes_the_same_machine_of_two(two_machines: Path) -> None:
    study, db = study_of(two_machines), str(two_machines)
    assert len(study.trials) == 24
    decided = {v["claim"]["id"]: v["decision"] for v in ask("results", "claims", "--db", db, "--json")}
    assert decided == {v.claim.id: v.decision for v in study.verdicts}
    fits = ask("results", "fits", "--db", db, "--json")["pairs"]
    assert [pair["n_trials"] for pair in fits] == [12] == [pair.n_trials for pair in study.pair_fits]
    assert len(study.audit.rows) == 24
    older = environment_key(MACHINE)
    (gains,) = (
        v
        for v in ask("results", "claims", "--db", db, "--json", "--machine", older)
        if v["claim"]["id"] == "moe-speedup"
    )
    assert len(gains["trials"]) == 18
    assert len(study_of(two_machines, older).audit.rows) == 36


def test_the_audit_judges_bytes_where_settings_changed(tmp_path: Path) -> None:
    big = msgspec.structs.replace(MOE, active_bytes=4_000_000_000)  # 400 GB/s at T(1) = 10 ms, of a peak of 100
    path = write(tmp_path / "s.sqlite", blocks(MOE) + blocks(MOE, prompts=("prose",), engine=THREADS))
    with Store.open(path) as store:
        store.add_models([big])
    rules = [f.rule for row in study_of(path).audit.rows for f in row.findings if f.verdict == "impossible"]
    assert rules.count("more_bandwidth_than_the_chip") >= 12  # every plain trial


def test_settings_of_most_trials_count_of_equals_the_latest_and_others_are_offered(half_changed: Path) -> None:
    chosen = chosen_of(half_changed)
    assert {c.engine.n_threads for c in chosen.cases.values()} == {7}
    (note,) = chosen.notes
    assert "36 trials of tiny-moe-q4_0 are left out (n_threads auto instead of 7)" in note
    key = settings_key(case(MOE, "code"))
    assert f"--settings {key}" in note
    asked = chosen_of(half_changed, settings=key)
    assert {c.engine.n_threads for c in asked.cases.values()} == {None}
    more = write(half_changed, blocks(MOE, prompts=("essay",)))
    assert {c.engine.n_threads for c in chosen_of(more).cases.values()} == {None}
    with pytest.raises(AnalysisError, match="No trials have settings") as caught:
        chosen_of(half_changed, settings="nothing")
    assert key in caught.value.hint


def test_threads_left_open_and_given_are_one_setting_where_the_same_number_was_used(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE), **as_stored(SessionPlan(pool="workload", n_threads=7)))
    write(path, blocks(MOE, prompts=("prose",), engine=THREADS))
    assert chosen_of(path).notes == () and {c.engine.n_threads for c in chosen_of(path).cases.values()} == {None, 7}
    write(path, blocks(MOE, prompts=("poem",), engine=EngineOptions(n_threads=3)))
    assert "(n_threads 3 instead of 7)" in chosen_of(path).notes[0]


def test_another_file_of_a_target_or_of_a_draft_is_left_out(tmp_path: Path) -> None:
    file = msgspec.structs.replace(MOE, ref=msgspec.structs.replace(MOE.ref, sha256="d" * 64))
    draft = msgspec.structs.replace(DRAFT, ref=msgspec.structs.replace(DRAFT.ref, sha256="e" * 64))
    made = blocks(MOE) + blocks(file, repeats=1) + blocks(MOE, repeats=1, gammas=(5,), prompts=("prose",), draft=draft)
    path = write(tmp_path / "s.sqlite", made)
    first, second = chosen_of(path).notes
    assert (
        "16 trials of tiny-moe-q4_0 are left out (another file (dddddddd))" in first and "--settings dddddddd" in first
    )
    assert "1 trials with another file of the draft tiny-draft" in second
    assert {c.target.sha256 for c in chosen_of(path, settings="dddd").cases.values()} == {"d" * 64}


def test_the_seed_of_greedy_sampling_changes_nothing(tmp_path: Path) -> None:
    made = blocks(MOE, repeats=1) + blocks(MOE, repeats=1, prompts=("prose",), sampling=Sampling(seed=3, top_k=40))
    path = write(tmp_path / "s.sqlite", made)
    assert chosen_of(path).notes == ()
    warm = write(path, blocks(MOE, repeats=1, prompts=("prose",), sampling=Sampling(temperature=0.8)))
    (note,) = chosen_of(warm).notes
    assert "temperature 0.8 instead of 0.0" in note


def test_advice_mixes_no_settings_of_a_target(half_changed: Path) -> None:
    with Store.open(half_changed, read_only=True) as store:
        arms = [arm for own in read_evidence([store]).arms.values() for arm in own]
    assert {prompt for arm in arms for prompt in arm.prompts} == {"chinese", "prose", "poem"}

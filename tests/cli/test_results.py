from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlsd.cli.main import cli
from mlsd.errors import InputError, StoreError
from mlsd.records import QualityWarning
from mlsd.store.store import Store
from tests.measure.examples import ENVIRONMENT, case, failed, trial

Command = Callable[..., Result]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "study.sqlite"
    with Store.open(path) as store:
        run_id = store.begin_run(ENVIRONMENT, {"suites": ["B"]}, seed=7)
        store.add_cases(run_id, [case(0), case(4), case(8)])
        lost = failed(case(8), reason="killed [bold]\x1b[31m\nlast line")
        store.add(run_id, [trial(case(0), losslessness=None), trial(case(4)), lost])
        store.end_run(run_id)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)


def test_trials_are_listed_with_speed_acceptance_and_the_reason_of_a_failure(db: Path) -> None:
    output = run("results", "--trials", "--db", db).output
    assert "71.4 %" in output
    assert "no: killed [bold]\N{REPLACEMENT CHARACTER}[31m" in output
    assert "\x1b" not in output
    assert "3 trials, 1 failed, 0 not valid, 0 disturbed." in output


def test_filters_narrow_the_list(db: Path) -> None:
    def listed(*arguments: str) -> list[int]:
        return [
            t["trial_id"]
            for t in json.loads(run("results", "--trials", "--json", *arguments, "--db", db).stdout)["trials"]
        ]

    assert listed() == [1, 2, 3]
    assert listed("--arm", "ar") == [1]
    assert listed("--failed") == [3]
    assert listed("--suite", "b") == [1, 2, 3]
    assert listed("--suite", "A") == []
    assert "No trial matches." in run("results", "--trials", "--suite", "F", "--db", db).output


def test_one_trial_is_shown_by_its_number_or_its_case(db: Path) -> None:
    by_number = run("results", "2", "--rounds", "--db", db).output
    assert f"Trial 2 of case {case(4).id}" in by_number
    assert "2, 5 of 7 proposed tokens accepted" in by_number
    assert "verify ms" in by_number
    assert run("results", "--db", db, case(4).id[:6], "--rounds").output == by_number
    (shown,) = json.loads(run("results", "2", "--json", "--db", db).stdout)
    assert shown["trial"]["tokens"] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert shown["case"]["gamma"] == 4


def test_an_unknown_trial_is_named(db: Path) -> None:
    with pytest.raises(InputError, match="No trial has the number or case id '99'"):
        run("results", "99", "--db", db)


def test_the_files_integrity_can_be_checked(db: Path) -> None:
    assert "no problem found" in run("results", "--check", "--db", db).output
    raw = sqlite3.connect(db)
    raw.execute('DELETE FROM "case"')
    raw.commit()
    raw.close()
    with pytest.raises(StoreError, match="points to a missing case"):
        run("results", "--check", "--db", db)


@pytest.mark.parametrize(
    "words",
    ["--check --json", "--format csv --json", "--claims --suite B", "--fits --arm sd", "2 --all", "--check --failed"],
)
def test_what_would_be_ignored_is_refused(db: Path, words: str) -> None:
    ran = run("results", *words.split(), "--db", db)
    assert ran.exit_code == 2 and "only for" in ran.output


# --- import -----------------------------------------------------------------------------------------------------


def test_an_import_of_a_missing_file_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mlsd.cli.main import main

    with pytest.raises(SystemExit):
        main(["record", str(tmp_path / "none.csv"), "--into", str(tmp_path / "new.sqlite")])
    assert "none.csv cannot be read: No such file or directory" in capsys.readouterr().err


def test_warnings_of_one_kind_are_one_line(db: Path) -> None:
    spreads = [QualityWarning(code="wide_spread", message=f"Spread {n} %.", advice="Add repeats.") for n in (31, 36)]
    with Store.open(db) as store:
        store.add_warnings(1, spreads)
    assert (
        "Warning [wide_spread] Spread 31 %. (and 1 more of this kind)" in run("results", "--trials", "--db", db).stderr
    )

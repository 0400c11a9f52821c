import csv
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import mlsd as mlsd_library
from mlsd.cli.main import cli
from mlsd.errors import InputError, StoreError
from mlsd.records import QualityWarning
from mlsd.report.render import terminal
from mlsd.report.tables.equations import equation_table
from mlsd.report.tables.results import model_table
from mlsd.store.store import Store
from tests.analysis.pair_studies import Arm, Study, write_study
from tests.cli.conftest import Mlsd
from tests.measure.examples import ENVIRONMENT, case, failed, trial

Command = Callable[..., Result]
STUDY = Study(arms=(Arm(gammas=(1, 2, 4, 8)), Arm(target="moe", per_row=0.1, gammas=(1, 2, 4, 8))))


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


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("fitted") / "s.sqlite", STUDY)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)


def test_trials_are_listed_with_speed_acceptance_and_the_reason_of_a_failure(db: Path) -> None:
    output = run("results", "trials", "--db", db).output
    assert "71.4 %" in output
    assert "killed [bold]\N{REPLACEMENT CHARACTER}[31m" in output
    assert "\x1b" not in output
    assert "3 trials, 1 failed, 0 not valid, 0 disturbed." in output


def test_filters_narrow_the_list(db: Path) -> None:
    def listed(*arguments: str) -> list[int]:
        return [
            t["trial_id"]
            for t in json.loads(run("results", "trials", "--json", *arguments, "--db", db).stdout)["trials"]
        ]

    assert listed() == [1, 2, 3]
    assert listed("--arm", "ar") == [1]
    assert listed("--failed") == [3]
    assert listed("--suite", "b") == [1, 2, 3]
    assert "No trial matches." in run("results", "trials", "--failed", "--arm", "ar", "--db", db).output


def test_one_trial_is_shown_by_its_number_or_its_case(db: Path) -> None:
    by_number = run("results", "trial", "2", "--rounds", "--db", db).output
    assert f"Trial 2 of case {case(4).id}" in by_number
    assert "2, 5 of 7 proposed tokens accepted" in by_number
    assert "verify ms" in by_number
    assert run("results", "trial", "--db", db, case(4).id[:6], "--rounds").output == by_number
    (shown,) = json.loads(run("results", "trial", "2", "--json", "--db", db).stdout)
    assert shown["trial"]["tokens"] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert shown["case"]["gamma"] == 4


def test_the_files_integrity_can_be_checked(db: Path) -> None:
    assert "no problem found" in run("results", "check", "--db", db).output
    raw = sqlite3.connect(db)
    raw.execute('DELETE FROM "case"')
    raw.commit()
    raw.close()
    with pytest.raises(StoreError, match="points to a missing case"):
        run("results", "check", "--db", db)


def test_warnings_of_one_kind_are_one_line(db: Path) -> None:
    spreads = [QualityWarning(code="wide_spread", message=f"Spread {n} %.", advice="Add repeats.") for n in (31, 36)]
    with Store.open(db) as store:
        store.add_warnings(1, spreads)
    assert "Warning [wide_spread] Spread 31 %. (and 1 more of this kind)" in run("results", "trials", "--db", db).stderr


# --- trials for other programs ------------------------------------------------------------------------------------


def exported(*arguments: object) -> Result:
    return run("results", "export", "csv", *arguments)


def test_standard_output_holds_the_table_and_nothing_else(db: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(exported("--db", db).stdout)))
    assert [row["gamma"] for row in rows] == ["0", "4", "8"]
    assert len(json.loads(run("results", "export", "json", "--arm", "sd", "--db", db).stdout)["trials"]) == 2
    assert "Nothing matched" in exported("--failed", "--arm", "ar", "--db", db).output


def test_an_existing_file_is_replaced_only_on_request(db: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.csv"
    output.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        exported("-o", output, "--db", db)
    assert output.read_text() == "mine"
    exported("-o", output, "--force", "--db", db)
    assert output.read_text().startswith("trial_id,")


# --- claims -------------------------------------------------------------------------------------------------------


def test_claims_are_printed_with_verdict_print_and_audit(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", Study(arms=(Arm(target="moe", per_row=0.4, alpha=0.3),)))
    out = mlsd("results", "claims", "--db", path).out
    claim = "Speculative decoding with a small dense draft makes a mixture of experts faster."
    assert f"does not hold here  {claim}" in out and "which refutes the print: 12 rows impossible" in out


# --- fits ---------------------------------------------------------------------------------------------------------


def test_fits_are_printed_with_what_they_predict(mlsd: Mlsd, fitted: Path) -> None:
    lines = [" ".join(line.split()) for line in mlsd("results", "fits", "--db", fitted).out.splitlines()]
    (best,) = [line for line in lines if line.startswith("dense + small corrected")]
    assert best.endswith("predicts best")
    equations = [line for line in lines if line.startswith("B dense small, gamma 8 rounds")]
    assert len(equations) == 1
    assert "corrected: S = MGL / (T_draft + T(g+1) + rest) T(1)" in lines
    assert not any("T(k) of" in line for line in lines), "no pass was timed"


@pytest.mark.slow
def test_eighty_columns_keep_what_was_measured_and_predicted(fitted: Path) -> None:
    study = mlsd_library.open_study(fitted)
    shown = terminal.render(equation_table(study.predictions), width=80)
    assert max(map(len, shown.splitlines()[1:5])) <= 80
    assert all(word in shown for word in ("measured speedup", "Eq. 1", "Eq. 2", "corrected", "setting"))
    fits = terminal.render(model_table(study.pair_fits, []), width=80)
    assert all(word in fits for word in ("model", "held-out error", "choice"))


def test_one_model_as_json(mlsd: Mlsd, fitted: Path) -> None:
    document = json.loads(mlsd("results", "fits", "--db", fitted, "--target", "moe", "--json").out)
    assert [pair["target"] for pair in document["pairs"]] == ["moe"]
    fits = {fit["model"]: fit for fit in document["pairs"][0]["fits"]}
    assert set(fits) == {"equation 1", "equation 2", "overhead", "corrected"}
    assert set(fits["overhead"]["estimates"]["draft_cost"]) == {"value", "low", "high", "n"}
    assert fits["overhead"]["not_identified"] == []
    assert len(document["arms"]) == 4 and all(arm["decision"] for arm in document["arms"]), "as its session decides"


def test_an_unknown_model_is_refused_with_those_there_are(mlsd: Mlsd, fitted: Path) -> None:
    refused = mlsd("results", "fits", "--db", fitted, "--target", "x")
    assert refused.code == 2 and "dense, moe" in refused.err

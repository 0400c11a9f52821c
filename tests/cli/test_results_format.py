import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlsd.cli.main import cli
from mlsd.errors import InputError
from mlsd.formats import EXPORTS
from mlsd.store.store import Store
from tests.measure.examples import ENVIRONMENT, case, trial


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "study.sqlite"
    with Store.open(path) as store:
        run_id = store.begin_run(ENVIRONMENT, {}, seed=7)
        store.add_cases(run_id, [case(0), case(4)])
        store.add(run_id, [trial(case(0)), trial(case(4))])
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["results", "--format", "csv", *map(str, arguments)], catch_exceptions=False)


def test_standard_output_holds_the_table_and_nothing_else(db: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("--db", db).stdout)))
    assert [row["gamma"] for row in rows] == ["0", "4"]
    assert len(json.loads(run("--format", "json", "--arm", "sd", "--db", db).stdout)["trials"]) == 1


@pytest.mark.parametrize("kind", EXPORTS)
def test_every_format_writes_a_file(db: Path, tmp_path: Path, kind: str) -> None:
    output = tmp_path / "out.file"
    assert "2 " in run("--format", kind, "-o", output, "--db", db).output
    assert output.stat().st_size > 0


def test_an_existing_file_is_replaced_only_on_request(db: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.csv"
    output.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        run("-o", output, "--db", db)
    assert output.read_text() == "mine"
    run("-o", output, "--force", "--db", db)
    assert output.read_text().startswith("trial_id,")


def test_the_database_itself_is_never_written_over(db: Path) -> None:
    before = db.read_bytes()
    with pytest.raises(InputError, match="is the study database itself"):
        run("-o", db, "--force", "--db", db)
    assert db.read_bytes() == before


def test_nothing_to_write_is_said(db: Path) -> None:
    assert "Nothing matched" in run("--suite", "F", "--db", db).output

"""Which database a command means when nobody names one: the newest study under results/, whatever else lies there."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from mlsd.store.newest import newest_or_new, newest_study, study_databases
from mlsd.store.store import Store
from tests.analysis.studies import MACHINE, MOE, blocks, write
from tests.cli.conftest import Mlsd

STUDIES = Path(__file__).parents[2] / "studies"
READERS = (*(f"results{view}" for view in ("", " trials", " fits", " claims", " export csv")), "report -o page")


@pytest.fixture
def results() -> Path:
    """A study, and newer files that are none: a search, a text, nothing at all."""
    folder = Path("results")
    folder.mkdir()
    write(folder / "mine.sqlite", blocks(MOE, repeats=2))
    with closing(sqlite3.connect(folder / "tune.sqlite")) as other:
        other.execute("CREATE TABLE studies (study_id)")
    (folder / "notes.sqlite").write_text("not a database, but long enough to look at " * 40, encoding="utf-8")
    (folder / "empty.sqlite").touch()
    for age, name in enumerate(("empty", "notes", "tune", "mine")):
        os.utime(folder / f"{name}.sqlite", (2_000_000_000 - 100 * age,) * 2)
    return folder


@pytest.mark.parametrize("command", READERS)
def test_a_file_that_is_no_study_stops_no_reader(mlsd: Mlsd, results: Path, command: str) -> None:
    ran = mlsd(*command.split())
    assert ran.code == 0, ran.err
    assert "tune.sqlite" not in ran.err
    assert list(study_databases()) == [results / "mine.sqlite"]


def test_of_several_studies_the_one_measured_into_last_is_meant_and_named(mlsd: Mlsd, results: Path) -> None:
    write(results / "later.sqlite", blocks(MOE, repeats=2))
    os.utime(results / "later.sqlite", (1_000_000_000,) * 2)
    assert newest_study() == results / "later.sqlite"
    assert "Reading results/later.sqlite, the newest of 2 databases" in mlsd("results").err
    assert mlsd("results", "fits").err.count("Reading") == 1
    with Store.open(results / "mine.sqlite"), Store.open(results / "mine.sqlite") as store:
        store.begin_run(MACHINE, {}, seed=0)
        assert newest_or_new() == results / "mine.sqlite", "the run is in the log, which the other connection keeps"
        assert newest_study() == results / "later.sqlite", "that run holds no trials"


def test_looking_for_the_newest_changes_no_file(results: Path) -> None:
    write(results / "later.sqlite", blocks(MOE, repeats=2))
    before = {path: path.stat().st_mtime_ns for path in results.iterdir()}
    assert newest_study() == newest_or_new() == results / "later.sqlite"
    assert {path: path.stat().st_mtime_ns for path in results.iterdir()} == before


def test_what_was_imported_last_hides_no_trials_and_takes_no_measurement(mlsd: Mlsd, results: Path) -> None:
    brought = mlsd("record", "import", next(STUDIES.glob("*.record.gz")), "--into", "results/record.sqlite")
    assert brought.code == 0, brought.err
    assert newest_study() == newest_or_new() == results / "mine.sqlite"
    assert mlsd("results", "claims").code == 0
    (results / "mine.sqlite").unlink()
    assert newest_or_new() == results / "bench.sqlite"
    assert newest_study() == results / "record.sqlite"


def test_without_any_study_readers_say_what_to_do_and_calibrations_begin_one(mlsd: Mlsd) -> None:
    ran = mlsd("results")
    assert ran.code == 2
    assert "There is no study database under results/" in ran.err and "mlsd run B" in ran.err
    assert newest_or_new() == Path("results/bench.sqlite")


def test_a_study_of_nothing_is_refused_before_the_analysis_is_loaded(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty.sqlite"):
        pass
    program = "import sys; from mlsd.cli import main\ntry: main(sys.argv[1:])\nfinally: print('pandas' in sys.modules)"
    command = [sys.executable, "-c", program, "results", "--db", str(tmp_path / "empty.sqlite")]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout.strip()) == (2, "False"), answer.stderr
    assert "holds no trials" in answer.stderr

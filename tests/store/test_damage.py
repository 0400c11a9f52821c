"""A database that somebody deletes, replaces, edits or damages: it is said, and nothing is made worse."""

import gc
import os
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlsd.analysis.compare.sessions import sessions
from mlsd.cli.main import cli
from mlsd.errors import StoreError
from mlsd.records import Status
from mlsd.store.database import last_runs
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad, PassShares
from mlsd.store.store import Store
from tests.formats.records import field, trial_with
from tests.measure.examples import ENVIRONMENT, MODEL, case, trial


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small study with something in every table of records."""
    path = tmp_path / "study.sqlite"
    with Store.open(path) as store:
        run_id = store.begin_run(ENVIRONMENT, {"suites": ["B"], "profile": "tiny"}, seed=7)
        store.add_models([MODEL])
        store.add_cases(run_id, [case(gamma) for gamma in (0, 4, 8)])
        store.add(run_id, [trial()])
        point = CalibrationPoint(model_key="m", kind="target_pass", rows=5, depth=64, repeat=0, span_ns=1_000)
        store.add_figures(run_id, [point])
        coverage = Coverage(model_key="m", source="text", layer=2, window=2, distinct={2: 1, 3: 4})
        store.add_figures(run_id, [coverage, ExpertLoad(model_key="m", source="text", layer=2, chosen=(7, 0))])
        share = {"n_passes": 1, "plain_ns": 10, "profiled_ns": 12, "headless_ns": 9, "parts_ns": {}}
        store.add_figures(run_id, [PassShares(model_key="m", rows=1, depth=0, **share)])  # type: ignore[arg-type]
    return path


def figure(kind: str, name: str, value: str) -> str:
    return f"UPDATE figure SET {field(name, value)} WHERE kind = '{kind}'"


def edit(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_database_deleted_during_a_run_stops_it(path: Path, suffix: str) -> None:
    with Store.open(path) as store:
        run_id = store.begin_run(ENVIRONMENT, {}, seed=0)
        Path(f"{path}{suffix}").unlink()
        with pytest.raises(StoreError, match="was deleted while it was being written"):
            store.add(run_id, [trial(repeat=5)])


def test_a_database_replaced_during_a_run_stops_it_and_the_new_one_stays_as_it_is(path: Path, tmp_path: Path) -> None:
    with Store.open(path) as store:
        run_id = store.begin_run(ENVIRONMENT, {}, seed=0)
        Path(f"{path}").rename(tmp_path / "old.sqlite")
        path.write_bytes(b"somebody else's")
        with pytest.raises(StoreError, match="was replaced while it was being written"):
            store.add(run_id, [trial(repeat=5)])
    assert path.read_bytes() == b"somebody else's"


def test_a_damaged_page_is_found_before_anything_is_written(path: Path) -> None:
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    data[size * 3 : size * 4] = bytes(range(256)) * (size // 256)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged"):
        Store.open(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("DROP TABLE warning", "table warning"),
        ("DROP VIEW trial_summary", "view trial_summary"),
        ("DROP INDEX trial_block", "index trial_block"),
        ("ALTER TABLE run DROP COLUMN ended_at", "column run.ended_at"),
    ],
)
def test_what_is_missing_is_found_by_the_check_and_before_writing(path: Path, statement: str, missing: str) -> None:
    edit(path, "DROP VIEW trial_summary") if "COLUMN" in statement else None
    edit(path, statement)
    with Store.open(path, read_only=True) as store:
        assert any(f"{missing} is missing" in problem for problem in store.check())
    with pytest.raises(StoreError, match=r"is damaged: .* is missing"):
        Store.open(path)


_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT trial.* FROM trial, n"


@pytest.mark.parametrize(
    ("statements", "what"),
    [
        (["DROP VIEW current_trial", f"CREATE VIEW current_trial AS {_ENDLESS}"], "view current_trial"),
        (["CREATE VIEW more AS SELECT 1"], "view more"),
        (["ALTER TABLE run RENAME TO other", "CREATE VIEW run AS SELECT 'z' AS started_at, '{}' AS plan, 1 AS id"],
         "(view run|run.ended_at)"),
        (["CREATE TRIGGER once AFTER INSERT ON trial BEGIN DELETE FROM trial; END"], "trigger once"),
    ],
)  # fmt: skip
def test_a_view_or_a_trigger_that_is_not_ours_is_never_run(path: Path, statements: list[str], what: str) -> None:
    for statement in statements:
        edit(path, statement)
    assert last_runs(path) == ("", "")
    for read_only in (True, False):
        with pytest.raises(StoreError, match=f"{what} is (not the one that mlsd made|missing)"):
            Store.open(path, read_only=read_only)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.sqlite"
    os.mkfifo(pipe)
    for read_only in (True, False):
        with pytest.raises(StoreError, match="is not a regular file"):
            Store.open(pipe, read_only=read_only)
    with pytest.raises(StoreError, match="is not a regular file"):
        Store.open(Path("/dev/zero"), read_only=True)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE run SET plan = '7'", "the plan of run 1"),
        ("UPDATE run SET environment = '{}'", "the environment of run 1"),
        ("UPDATE run SET environment = json_set(environment, '$.host', 'other')", "it is not the one"),
        ("UPDATE run SET environment = json_set(environment, '$.memory_bytes', -1)", "memory_bytes"),
        ("UPDATE run SET started_at = 'yesterday'", "run 1"),
        ("UPDATE model SET facts = 'null'", "model aaaa"),
        ("UPDATE model SET key = NULL", "its key is no text"),
        ("UPDATE model SET key = x'00ff'", "its key is no text"),
        ("UPDATE \"case\" SET record = json_remove(record, '$.target')", "case "),
        ("UPDATE \"case\" SET record = 'x'", "case "),
        ("UPDATE \"case\" SET target = 'tiny-dense' WHERE gamma = 4", "trial 1: In the results database case"),
        (trial_with("started_at", "'text'"), "trial 1"),
        (figure("calibration", "span_ns", "0"), "span_ns"),
        (figure("coverage", "distinct", "json('{}')"), "coverage of run 1"),
        (figure("coverage", "distinct", "json('{\"2\": -4}')"), "coverage of run 1"),
        (figure("expert_load", "chosen", "json('[-1]')"), "experts of run 1"),
        (figure("pass_share", "plain_ns", "-3"), "plain_ns"),
    ],
)
def test_a_value_that_mlsd_never_wrote_is_found_and_never_read_as_a_number(
    path: Path, statement: str, words: str
) -> None:
    edit(path, statement)
    with Store.open(path, read_only=True) as store:
        problems = store.check()
        assert any(words in problem for problem in problems), problems
        others = (store.runs, store.models, store.cases, lambda: list(store.trials()))
        assert sum(bool(read()) for read in others) >= 2, "what is not damaged is read"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM run",
        'DELETE FROM "case"',
        "UPDATE block SET environment_key = 'x'",
        "UPDATE figure SET run_id = 77 WHERE kind = 'calibration'",
    ],
)
def test_what_belongs_to_nothing_is_not_read(path: Path, statement: str) -> None:
    edit(path, statement)
    with Store.open(path, read_only=True) as store:
        assert store.check()
        if "calibration" in statement:
            assert not list(store.figures(CalibrationPoint))
        else:
            assert not list(store.trials())
            assert all("not there" in found.sentence for found in store.impossible.values()) and store.impossible


@pytest.mark.parametrize(
    "value",
    [
        "'{'",
        "json_set(plan, '$.decides', 7)",
        "json_set(plan, '$.decides', json('{\"pool\": \"moon\"}'))",
        "json_set(plan, '$.decides', json('{\"n_arms\": {\"tiny-moe\": -4}}'))",
        "json_set(plan, '$.decides', json('{\"n_questions\": {\"tiny-moe\": 0}}'))",
        "json_set(plan, '$.suites', 5)",
        "json_set(plan, '$.profile', json('[]'))",
        "json_set(plan, '$.engine', json('[1]'), '$.command', 'calibrate')",
    ],
)
def test_a_run_with_a_damaged_plan_is_left_out_and_the_others_are_read(path: Path, value: str) -> None:
    second = _second_run(path, value)
    with Store.open(path, read_only=True) as store:
        assert [run.id for run in store.runs()] == [second]
        assert {one.run_id for one in store.trials()} == {second}
        assert [message for message in store.damage if message.startswith("In the results database the plan of run 1")]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE run SET plan = json_set(plan, '$.decides', 7) WHERE id = 1", "the plan of run 1: decides = 7"),
        ("UPDATE \"case\" SET record = 'x' WHERE gamma = 8", f"case {case(8).id} cannot be read"),
    ],
)
def test_every_surface_names_a_run_or_a_case_that_is_damaged(path: Path, statement: str, named: str) -> None:
    _second_run(path, "plan")
    edit(path, statement)
    commands = (
        *(f"results{view}" for view in ("", " --json", " trials", " export csv", " claims", " fits")),
        *("advise tiny-moe --chip M1", "audit study"),
    )
    for command in (*commands, f"report -o {path.with_name('page')}"):
        result = CliRunner().invoke(cli, [*command.split(), "--db", str(path)])
        assert result.exit_code == 0, (command, result.output, result.exception)
        assert named in result.output, (command, result.output)


def _second_run(path: Path, plan_of_the_first: str) -> int:
    with Store.open(path) as store:
        second = store.begin_run(ENVIRONMENT, {"suites": ["B"], "profile": "tiny"}, seed=7)
        store.add(second, [trial(case(gamma), block=5, repeat=5, status=Status.VALID, reason=None) for gamma in (0, 4)])
    edit(path, f"UPDATE run SET plan = {plan_of_the_first} WHERE id = 1")
    return second


def test_a_comparison_that_lost_a_side_is_left_out(path: Path) -> None:
    with Store.open(path) as store:
        for role in ("0", "1"):
            store.begin_run(ENVIRONMENT, {"command": "compare", "session": "s", "role": role, "build": "b"}, seed=7)
        assert [one.session for one in sessions(store)] == ["s"]
    edit(path, "UPDATE run SET plan = json_remove(plan, '$.role') WHERE id = 2")
    with Store.open(path, read_only=True) as store:
        assert sessions(store) == ()


def test_a_reader_that_stops_early_says_nothing_when_the_database_is_closed(path: Path) -> None:
    late: list[object] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.unraisablehook", late.append)
        with Store.open(path, read_only=True) as store:
            reader = store.figures(Coverage)
            next(reader)
        del reader
        gc.collect()
    assert late == []

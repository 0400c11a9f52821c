"""A record that was altered is found, whatever was altered of what an answer is made of."""

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlsd.analysis.audit.record_check import Problem, problems
from mlsd.api import bench
from mlsd.errors import TableError
from mlsd.formats.record import opened_record
from mlsd.records import EngineOptions
from tests.formats.records import altered, database_in, pack, record_of, small_study, trial_with
from tests.hostile.mutate import VALUES

TIED = {  # counts, times, outputs and hashes, from which others follow
    "trial": ["case_id", "each_round"],
    "block": ["environment_key", "run_id"],
    "case": ["id", "suite", "target", "drafter", "draft", "gamma", "prompt", "n_predict"],
    "model": ["sha256", "key"],
    "run": ["environment_key"],
}
_SD = "case_id IN (SELECT id FROM \"case\" WHERE arm = 'sd')"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identities")
    return record_of(small_study(folder), folder / "small.record.gz")


def found_in(path: Path) -> list[Problem]:
    with opened_record(path) as file:
        return problems(file)


def another(value: Any, by: int) -> Any:
    """Another value of the same kind; of a JSON text one of its numbers is another."""
    if isinstance(value, str) and value.startswith("["):
        inner = json.loads(value)
        index = by % len(inner)
        inner[index] = another(json.dumps(inner[index]) if isinstance(inner[index], list) else inner[index], by)
        return json.dumps([json.loads(one) if isinstance(one, str) else one for one in inner])
    if isinstance(value, str):
        index = by % len(value)
        return value[:index] + ("0" if value[index] != "0" else "1") + value[index + 1 :]
    return value + by


@pytest.mark.slow
def test_an_honest_record_agrees_with_itself(record: Path) -> None:
    with opened_record(record) as file:
        assert problems(file) == []
        assert len(list(file.store.trials())) == 8


@pytest.mark.slow
def test_a_trial_that_went_on_from_a_saved_prompt_is_no_false_record(tmp_path: Path) -> None:
    path = tmp_path / "deep.sqlite"
    bench(
        "tiny-dense", db=path, drafters=("pld",), gammas=(2,), depths=(0, 512), n_predict=8, repeats=2,
        engine=EngineOptions(n_threads=1),
    )  # fmt: skip
    with opened_record(record_of(path, tmp_path / "deep.record.gz")) as file:
        assert any(one.trial.prefill_ns is None for one in file.store.trials())
        assert problems(file) == []


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_one_altered_token_time_count_or_hash_is_found(record: Path, data: st.DataObject) -> None:
    with closing(database_in(record)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        table, column = data.draw(st.sampled_from([(t, c) for t, names in TIED.items() for c in names]))
        values = db.execute(f'SELECT rowid, "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL').fetchall()
        row, value = data.draw(st.sampled_from(values))
        by = data.draw(st.integers(1, 10**6) | st.integers(-(10**6), -1))
        db.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = ? WHERE rowid = ?', (another(value, by), row))
        path = pack(db, record.with_name("one.record.gz"))
    assert found_in(path), (table, column)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_value_of_any_kind_in_any_column_ends_in_problems_or_a_refusal_and_no_traceback(
    record: Path, data: st.DataObject
) -> None:
    with closing(database_in(record)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        table = data.draw(st.sampled_from(tables))
        column = data.draw(st.sampled_from([row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]))
        value = data.draw(st.sampled_from((*VALUES, 10**12, "\udcff".encode("utf-8", "surrogatepass"))))
        with suppress(sqlite3.Error):  # not even SQLite takes it
            db.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = ?', (value,))
        path = pack(db, record.with_name("any.record.gz"))
    with suppress(TableError):
        found_in(path)


@pytest.mark.parametrize(
    ("statements", "rule"),
    [
        # the parts of its rounds are not its decode time
        (["UPDATE trial SET each_round = json_set(each_round, '$[0][5]', json_extract(each_round, '$[0][5]') - 1000) "
          f"WHERE {_SD}"], "form"),
        ([trial_with("tokens[5]", "1 + json_extract(tokens, '$[5]')", _SD)],
         "output"),
        ([trial_with("fell_back", "'see /home/jane/notes'")], "private"),
        (["CREATE TABLE more (hostname)"], "form"),
        (["ALTER TABLE run ADD COLUMN hostname"], "form"),
        ([trial_with("started_at", "'2001-01-01T00:00:00+00:00'")], "time"),
        (["UPDATE run SET ended_at = '2001-01-01T00:00:00+00:00'"], "time"),
        (["UPDATE run SET ended_at = '-5'"], "form"),
        ([trial_with("started_at", "'yesterday'")], "form"),
        ([trial_with("position", "0")], "block"),
        ([trial_with("losslessness", "NULL")], "verdict"),
        (["UPDATE model SET facts = json_set(facts, '$.active_bytes', 1000000000000)"], "model"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named_by_its_rule(record: Path, statements: list[str], rule: str) -> None:
    assert rule in {problem.rule for problem in found_in(altered(record, *statements))}

"""A small real study and its record, and ways to alter one."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mlsd.api import bench
from mlsd.formats.record import write_record
from mlsd.records import EngineOptions
from mlsd.store.store import Store


def small_study(folder: Path) -> Path:
    """Plain and speculative decoding of an embedded model on two shipped prompts, twice each."""
    path = folder / "study.sqlite"
    with pytest.MonkeyPatch.context() as folders:  # shared fixtures make it, before a test has folders of its own
        for name in ("MLSD_HOME", "MLSD_CACHE"):
            folders.setenv(name, str(folder / "own"))
        bench(
            "tiny-dense", db=path, drafts=("tiny-draft",), gammas=(2,), prompts=("factual", "code"), n_predict=24,
            repeats=2, engine=EngineOptions(n_threads=1),
        )  # fmt: skip
    return path


def record_of(database: Path, path: Path) -> Path:
    with Store.open(database, read_only=True) as store:
        write_record(store, path)
    return path


def database_in(record: Path) -> sqlite3.Connection:
    """The database that a record holds, in memory; `pack` writes it back."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    data = gzip.decompress(record.read_bytes())
    connection.deserialize(data[:18] + b"\1\1" + data[20:])
    return connection


def pack(connection: sqlite3.Connection, path: Path) -> Path:
    path.write_bytes(gzip.compress(connection.serialize(), 1))
    return path


def field(name: str, value: str) -> str:
    """The assignment that gives a field of a trial's record another value, which is SQL."""
    return f"record = json_set(record, '$.{name}', {value})"


def trial_with(name: str, value: str, where: str = "1") -> str:
    """The statement that gives a field of trials' records another value, which is SQL."""
    return f"UPDATE trial SET {field(name, value)} WHERE {where}"


def altered(record: Path, *statements: str) -> Path:
    """A record beside this one in which somebody changed something with SQL."""
    with closing(database_in(record)) as connection:
        for statement in statements:
            connection.execute(statement)
        return pack(connection, record.with_name("altered.record.gz"))

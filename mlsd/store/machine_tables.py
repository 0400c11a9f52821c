"""The part of a study database that knows the machine: timed passes, chosen experts, what the memory gives."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mlsd.errors import StoreError
from mlsd.store import database, rowcodec
from mlsd.store.pass_shares import PassShares
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad, Run, StreamRead, TimedPass


class _FigureTable(NamedTuple):
    """Where figures of one kind stand."""

    name: str
    what: str  # one row, in words
    columns: tuple[str, ...]  # that hold all of the figure, in the order of its fields; "record" is its JSON
    for_sql: tuple[str, ...] = ()  # columns that repeat what others hold
    order: str = "id"


Figure = CalibrationPoint | Coverage | ExpertLoad | StreamRead | TimedPass | PassShares
_JSON: dict[str, Any] = {  # columns of JSON text, with the type they are read back as
    "distinct": dict[int, int],
    "chosen": tuple[int, ...],
}
_PLACE = "run_id, model_key, source, layer"
FIGURES: dict[type, _FigureTable] = {
    CalibrationPoint: _FigureTable("calibration", "a timed pass", CalibrationPoint.__struct_fields__),
    Coverage: _FigureTable(
        "coverage", "the coverage", Coverage.__struct_fields__, ("n_windows", "distinct_mean"), f"{_PLACE}, window"
    ),
    ExpertLoad: _FigureTable("expert_load", "the experts", ExpertLoad.__struct_fields__, order=_PLACE),
    StreamRead: _FigureTable("stream_read", "a streaming read", StreamRead.__struct_fields__),
    TimedPass: _FigureTable("known_pass", "a timed pass", TimedPass.__struct_fields__),
    PassShares: _FigureTable(
        "pass_share", "a profiled pass", ("record",), ("model_key", "drafting_key", "rows", "depth")
    ),
}
F = TypeVar("F", CalibrationPoint, Coverage, ExpertLoad, StreamRead, TimedPass, PassShares)
T = TypeVar("T")


def _value(figure: Figure, column: str) -> Any:
    value = figure if column == "record" else getattr(figure, column)
    return rowcodec.encode(value) if column == "record" or column in _JSON else value


class MachineTables:
    """An open database and its tables of the machine; `store.Store` adds those of trials."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._place = database.DatabaseFile(path)
        self._as_of, self._known = (0, 0), dict[str, Any]()  # a state of the file, and what was read of it
        self.damage: dict[str, None] = {}  # why rows read so far were left out, each once

    def add_figures(self, run_id: int, figures: Iterable[Figure]) -> None:
        """Record what was measured of the machine, all or nothing."""
        with self._transaction() as db:
            for one in figures:
                table = FIGURES[type(one)]
                columns = (*table.columns, *table.for_sql)
                names, marks = ", ".join(f'"{name}"' for name in columns), ", ?" * len(columns)
                values = (_value(one, name) for name in columns)
                db.execute(f"INSERT INTO {table.name} (run_id, {names}) VALUES (?{marks})", (run_id, *values))

    def figures(self, kind: type[F]) -> Iterator[tuple[int, F]]:
        """Stream (run id, figure) of one kind, of the runs that can be read."""
        table = FIGURES[kind]
        names = ", ".join(f'"{name}"' for name in table.columns)
        known = {run.id for run in self.runs()}
        for run_id, *values in self._rows(f"SELECT run_id, {names} FROM {table.name} ORDER BY {table.order}"):
            if run_id not in known:
                continue
            where = f"{table.what} of run {run_id}"
            if table.columns == ("record",):
                yield run_id, rowcodec.decode(values[0], kind, where)
                continue
            for place, name in enumerate(table.columns):
                if name in _JSON:
                    values[place] = rowcodec.decode(values[place], _JSON[name], where)
            yield run_id, rowcodec.record(kind, values, where)

    def copy(self) -> sqlite3.Connection:
        """A copy of the database in memory."""
        return database.copied(self._connection)

    def runs(self) -> list[Run]:
        """All runs that can be read, oldest first."""
        query = "SELECT id, status, started_at, ended_at, seed, environment, plan, environment_key FROM run ORDER BY id"
        return list(self._until_written("runs", lambda: list(self._readable(rowcodec.run, self._rows(query)))))

    # --- inside -----------------------------------------------------------------------------------------------

    def _until_written(self, what: str, read: Callable[[], T]) -> T:
        """What was read once, until this or another program writes into the file."""
        with database.store_errors(self.path):
            (others,) = self._connection.execute("PRAGMA data_version").fetchone()
        if self._as_of != (as_of := (others, self._connection.total_changes)):
            self._as_of, self._known = as_of, {}
        if what not in self._known:
            self._known[what] = read()
        found: T = self._known[what]
        return found

    def _readable(self, read: Callable[[tuple[Any, ...]], T], rows: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """What can be read of rows; one that cannot stands in `damage`, and its trials among the impossible ones."""
        for row in rows:
            try:
                yield read(row)
            except StoreError as error:
                self.damage[error.message] = None

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        with database.store_errors(self.path):
            # Not `yield from`: it closes the cursor of a reader that stopped early, which fails after the database is
            # closed, with a message that would hide why the reader stopped.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with database.store_errors(self.path), database.transaction(self._connection, self._place.check):
            yield self._connection

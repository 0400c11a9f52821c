"""The part of a study database that knows the machine: timed passes, chosen experts, what the memory gives."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mlsd.errors import StoreError
from mlsd.measure.store import database, rowcodec
from mlsd.measure.store.pass_shares import PassShares
from mlsd.measure.store.rows import CalibrationPoint, Coverage, ExpertLoad, Run, StreamRead, TimedPass


class RowStream(NamedTuple):
    """Columns and streamed rows, for a frame."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


T = TypeVar("T")


class MachineTables:
    """An open database and its tables of the machine; `store.Store` adds those of trials."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._place = database.DatabaseFile(path)
        self.damage: dict[str, None] = {}  # why rows read so far were left out, each once

    # --- writing ----------------------------------------------------------------------------------------------

    def add_calibration(self, run_id: int, points: Iterable[CalibrationPoint]) -> None:
        """Record timed passes."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO calibration (run_id, model_key, kind, rows, depth, repeat, span_ns) "
                "VALUES (?,?,?,?,?,?,?)",
                [(run_id, p.model_key, p.kind, p.rows, p.depth, p.repeat, p.span_ns) for p in points],
            )

    def add_coverage(self, run_id: int, coverage: Iterable[Coverage], loads: Iterable[ExpertLoad] = ()) -> None:
        """Record how many distinct experts windows of tokens chose, and how often each expert was chosen."""
        with self._transaction() as db:
            db.executemany(
                'INSERT INTO coverage (run_id, model_key, source, layer, window, n_windows, distinct_mean, "distinct") '
                "VALUES (?,?,?,?,?,?,?,?)",
                [
                    (
                        run_id,
                        c.model_key,
                        c.source,
                        c.layer,
                        c.window,
                        c.n_windows,
                        c.distinct_mean,
                        rowcodec.encode(c.distinct),
                    )
                    for c in coverage
                ],
            )
            db.executemany(
                "INSERT INTO expert_load (run_id, model_key, source, layer, chosen) VALUES (?,?,?,?,?)",
                [(run_id, e.model_key, e.source, e.layer, rowcodec.encode(e.chosen)) for e in loads],
            )

    def add_bandwidth(self, run_id: int, reads: Iterable[StreamRead], passes: Iterable[TimedPass]) -> None:
        """Record streaming reads and single-token passes of models of known bytes, all or nothing."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO stream_read (run_id, n_threads, repeat, gb_s) VALUES (?,?,?,?)",
                [(run_id, r.n_threads, r.repeat, r.gb_s) for r in reads],
            )
            db.executemany(
                "INSERT INTO known_pass (run_id, quant, n_bytes, block, ms) VALUES (?,?,?,?,?)",
                [(run_id, p.quant, p.n_bytes, p.block, p.ms) for p in passes],
            )

    def add_shares(self, run_id: int, shares: Iterable[PassShares]) -> None:
        """Record profiled passes."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO pass_share (run_id, model_key, drafting_key, rows, depth, record) VALUES (?,?,?,?,?,?)",
                [(run_id, s.model_key, s.drafting_key, s.rows, s.depth, rowcodec.encode(s)) for s in shares],
            )

    # --- reading ----------------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """All runs that can be read, oldest first."""
        rows = self._rows(
            "SELECT id, status, started_at, ended_at, seed, environment, plan, environment_key FROM run ORDER BY id"
        )
        return list(self._readable(rowcodec.run, rows))

    def calibration(self, model_key: str | None = None) -> Iterator[tuple[int, CalibrationPoint]]:
        """Stream (run id, timed pass), of one model or of all."""
        query = (
            "SELECT run_id, model_key, kind, rows, depth, repeat, span_ns FROM calibration "
            "WHERE model_key = coalesce(?, model_key) ORDER BY id"
        )
        for run_id, *values in self._of_runs(query, (model_key,)):
            yield run_id, rowcodec.record(CalibrationPoint, values, f"a timed pass of run {run_id}", above_zero=True)

    def coverage(self, model_key: str | None = None) -> Iterator[tuple[int, Coverage]]:
        """Stream (run id, distinct experts of one layer and window), of one model or of all."""
        query = (
            'SELECT run_id, model_key, source, layer, window, "distinct" FROM coverage '
            "WHERE model_key = coalesce(?, model_key) ORDER BY run_id, model_key, source, layer, window"
        )
        for run_id, key, source, layer, window, distinct in self._of_runs(query, (model_key,)):
            where = f"the coverage of run {run_id}"
            counts = rowcodec.decode(distinct, dict[rowcodec.Count, rowcodec.Count], where)
            if not sum(counts.values()):
                raise rowcodec.damaged(where, "it counts no window")
            yield run_id, rowcodec.record(Coverage, (key, source, layer, window, counts), where)

    def expert_loads(self, model_key: str | None = None) -> Iterator[tuple[int, ExpertLoad]]:
        """Stream (run id, how often each expert of one layer was chosen), of one model or of all."""
        query = (
            "SELECT run_id, model_key, source, layer, chosen FROM expert_load "
            "WHERE model_key = coalesce(?, model_key) ORDER BY run_id, model_key, source, layer"
        )
        for run_id, key, source, layer, chosen in self._of_runs(query, (model_key,)):
            where = f"the experts of run {run_id}"
            times = rowcodec.decode(chosen, tuple[rowcodec.Count, ...], where)
            yield run_id, rowcodec.record(ExpertLoad, (key, source, layer, times), where)

    def stream_reads(self) -> Iterator[tuple[int, StreamRead]]:
        """Stream (run id, one streaming read), in the order of writing."""
        for run_id, *values in self._of_runs("SELECT run_id, n_threads, repeat, gb_s FROM stream_read ORDER BY id"):
            yield run_id, rowcodec.record(StreamRead, values, f"a streaming read of run {run_id}", above_zero=True)

    def known_passes(self) -> Iterator[tuple[int, TimedPass]]:
        """Stream (run id, single-token passes of one model of known bytes), in the order of writing."""
        for run_id, *values in self._of_runs("SELECT run_id, quant, n_bytes, block, ms FROM known_pass ORDER BY id"):
            yield run_id, rowcodec.record(TimedPass, values, f"a timed pass of run {run_id}", above_zero=True)

    def shares(self) -> Iterator[tuple[int, PassShares]]:
        """Stream (run id, one profiled pass), in the order of writing."""
        for run_id, record in self._of_runs("SELECT run_id, record FROM pass_share ORDER BY id"):
            yield run_id, rowcodec.decode(record, PassShares, f"a profiled pass of run {run_id}")

    # --- inside -----------------------------------------------------------------------------------------------

    def _readable(self, read: Callable[[tuple[Any, ...]], T], rows: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """What can be read of rows; one that cannot stands in `damage`, and its trials among the impossible ones."""
        for row in rows:
            try:
                yield read(row)
            except StoreError as error:
                self.damage[error.message] = None

    def _of_runs(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """Rows that begin with the id of a run, of the runs that can be read."""
        known = {run.id for run in self.runs()}
        return (row for row in self._rows(query, values) if row[0] in known)

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        with database.store_errors(self.path):
            # Not `yield from`: it closes the cursor of a reader that stopped early, which fails after the database is
            # closed, with a message that would hide why the reader stopped.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row

    def _table(self, query: str, values: tuple[Any, ...] = ()) -> RowStream:
        with database.store_errors(self.path):
            cursor = self._connection.execute(query, values)
        columns = tuple(column[0] for column in cursor.description)
        return RowStream(columns, self._checked(columns, cursor))

    def _checked(self, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        counts = [(place, name) for place, name in enumerate(columns) if rowcodec.is_count(name)]
        with database.store_errors(self.path):
            for row in rows:
                for place, name in counts:
                    value = row[place]
                    if value is not None and (type(value) is not int or value < 0):
                        raise rowcodec.damaged(f"a row with {columns[0]} {row[0]!r}", f"its {name} is {value!r}")
                yield row

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with database.store_errors(self.path), database.transaction(self._connection, self._place.check):
            yield self._connection

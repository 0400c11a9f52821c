"""The study database: blocks of trials, each committed whole before the next one starts, and figures of the machine.

Owns what is written and how it is read back as records. Nothing is overwritten and nothing is deleted: what is stored
of a block changes only by being superseded, when the same block is measured again on the same machine and build.
"""

import datetime
import sqlite3
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import add
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from mlsd.errors import StoreError
from mlsd.planning.job import BlockKey
from mlsd.records import Case, Environment, ModelFacts, QualityWarning, Status, Trial
from mlsd.stats import grouped
from mlsd.store import database, rowcodec
from mlsd.store.rows import (
    FIGURES,
    DraftDistance,
    MachineFigure,
    MeasuredCase,
    Run,
    RunStatus,
    StoredWarning,
    TrialFilter,
    environment_key,
)
from mlsd.trials.identities import Broken, admitted, broken, no_figure
from mlsd.trials.rates import PARTS, Sums, sums
from mlsd.trials.results import Measured

ALL = TrialFilter()
F = TypeVar("F", bound=MachineFigure)
T = TypeVar("T")


class Store:
    """One study database. Use as a context manager; `Store.open` is the only way to get one."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._file = database.DatabaseFile(path)
        self._as_of, self._cached = (0, 0), dict[str, Any]()  # a state of the file, and what was read of it
        self._cases: dict[str, Case | StoreError] = {}  # as they were read: a case never changes
        self.damage: dict[str, None] = {}  # why rows read so far were left out, each once

    @classmethod
    def open(cls, path: Path, *, create: bool = True, read_only: bool = False) -> Self:
        """Open the database at `path`, made where it is missing; read-only never writes.

        Raises: StoreError for another version, and for a file that is missing (without `create`), locked, damaged, not
            writable or not a study database.
        """
        return cls(path, database.connect(path, create=create, read_only=read_only))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    # --- writing ----------------------------------------------------------------------------------------------

    def begin_run(self, environment: Environment, plan: Mapping[str, Any], seed: int) -> int:
        """Record that a run starts and return its id; earlier runs of this host that never ended are `interrupted`."""
        with self._transaction() as db:
            db.execute(
                "UPDATE run SET status = 'interrupted' WHERE status = 'started' "
                "AND json_extract(environment, '$.host') = ?",
                (environment.host,),
            )
        return self.add_run(Run(id=0, status="started", started_at=_now(), ended_at=None, seed=seed,
                                environment=environment, plan=dict(plan)))  # fmt: skip

    def add_run(self, run: Run) -> int:
        """Record a run, as it was told where it happened elsewhere, and return its id here; its own does not count."""
        columns = ("status", "started_at", "ended_at", "seed", "environment_key", "environment", "plan")
        stored = (environment_key(run.environment), rowcodec.encode(run.environment), rowcodec.plan(run.plan))
        with self._transaction() as db:
            values = (run.status, run.started_at, run.ended_at, run.seed, *stored)
            return _row_id(db.execute(rowcodec.insert("run", columns), values))

    def end_run(self, run_id: int, status: RunStatus = "finished", ended_at: str | None = None) -> None:
        """Record how a run ended; `ended_at` is of one that ended elsewhere."""
        with self._transaction() as db:
            db.execute("UPDATE run SET status = ?, ended_at = ? WHERE id = ?", (status, ended_at or _now(), run_id))

    def set_in_plan(self, run_id: int, path: str, value: object) -> None:
        """Record in a run's plan what is known only later: `stages`, ``decides.context_bytes``."""
        with self._transaction() as db:
            values = (f"$.{path}", rowcodec.encode(value), run_id)
            db.execute("UPDATE run SET plan = json_set(plan, ?, json(?)) WHERE id = ?", values)

    def add_models(self, models: Iterable[ModelFacts]) -> None:
        """Record what the models' files say; a model known by its hash is replaced."""
        rows = [(one.ref.key, *_named(one), rowcodec.encode(one)) for one in models]
        with self._transaction() as db:
            db.executemany(rowcodec.insert("model", _MODEL, "INSERT OR REPLACE"), rows)

    def add_cases(self, run_id: int, cases: Iterable[Case] | Mapping[str, Case]) -> None:
        """Record configurations; those known already stay with the run that first planned them.

        A mapping gives each case under its id, which saves hashing them again: seconds where there are 100,000.
        """
        by_id = cases.items() if isinstance(cases, Mapping) else ((case.id, case) for case in cases)
        with self._transaction() as db:
            recorded = {case_id for (case_id,) in db.execute('SELECT id FROM "case"')}
            rows = (rowcodec.case_row(case_id, run_id, case) for case_id, case in by_id if case_id not in recorded)
            db.executemany(rowcodec.insert("case", rowcodec.CASE, "INSERT OR IGNORE"), rows)

    def add(self, run_id: int, trials: Sequence[Trial], *, supersede: bool = True) -> list[Measured]:
        """Commit a block: what one process measured of its cases, all or nothing. The one gate into the database.

        Earlier measurements of the same block on the same machine and build are superseded. What breaks an identity
        that every answer rests on is stored as a failed trial with the reason, so that one bad trial of an engine, a
        server, a lab or a record never makes the others unreadable.
        """
        if len({(one.block, one.repeat) for one in trials}) != 1:
            raise StoreError("What is to be stored is not one block.", hint="This is a fault of mlsd: report it.")
        stored = []
        with self._transaction() as db:
            stored_cases = [(case := self._case(one.case_id), admitted(case, one)) for one in trials]
            number, repeat = stored_cases[0][1].block, stored_cases[0][1].repeat
            query = "SELECT environment_key, json_extract(environment, '$.backend') FROM run WHERE id = ?"
            key, backend = db.execute(query, (run_id,)).fetchone() or ("", None)
            if supersede:
                db.execute(
                    "UPDATE block SET superseded = 1 "
                    "WHERE environment_key = ? AND number = ? AND repeat = ? AND NOT superseded",
                    (key, number, repeat),
                )
            columns = ("run_id", "environment_key", "number", "repeat")
            block_id = _row_id(db.execute(rowcodec.insert("block", columns), (run_id, key, number, repeat)))
            for case, trial in stored_cases:
                summed = sums(trial.rounds) if trial.rounds else None
                row = rowcodec.trial_row(block_id, trial, summed)
                id_ = _row_id(db.execute(rowcodec.insert("trial", rowcodec.TRIAL), row))
                measured = Measured(case, trial, summed, block_id, id_, run_id, key)
                stored.append(measured._replace(on_processor=_on_processor(case, backend)))
        return stored

    def supersede(self, environment: Environment, case_ids: Iterable[str]) -> None:
        """Let blocks of only these cases on this machine and build count no more, so that they can be measured again.

        They stay in the file; `TrialFilter(superseded=True)` reads them.
        """
        query = (
            "UPDATE block SET superseded = 1 WHERE environment_key = ? AND NOT EXISTS (SELECT 1 FROM trial WHERE "
            "trial.block_id = block.id AND trial.case_id NOT IN (SELECT value FROM json_each(?)))"
        )
        with self._transaction() as db:
            db.execute(query, (environment_key(environment), rowcodec.encode(list(case_ids))))

    def add_warnings(self, run_id: int, warnings: Iterable[QualityWarning]) -> None:
        """Record doubts about a run; one already recorded for it is not repeated."""
        with self._transaction() as db:
            recorded = set(db.execute("SELECT code, message, advice, case_id FROM warning WHERE run_id = ?", (run_id,)))
            rows = dict.fromkeys((w.code, w.message, w.advice, w.case_id) for w in warnings)
            statement = rowcodec.insert("warning", ("run_id", "code", "message", "advice", "case_id"))
            db.executemany(statement, [(run_id, *row) for row in rows if row not in recorded])

    def add_distance(self, distance: DraftDistance) -> None:
        """Record how far a draft lies from its target; the same pair measured again on the same text is replaced."""
        key = (distance.target_key, distance.drafting_key, distance.text_sha256, distance.n_tokens)
        with self._transaction() as db:
            values = (*key, _now(), rowcodec.encode(distance))
            db.execute("INSERT OR REPLACE INTO draft_distance VALUES (?,?,?,?,?,?)", values)

    def add_figures(self, run_id: int, figures: Iterable[MachineFigure]) -> None:
        """Record what was measured of the machine, all or nothing."""
        with self._transaction() as db:
            rows = [(run_id, FIGURES[type(one)].name, rowcodec.encode(one)) for one in figures]
            db.executemany(rowcodec.insert("figure", ("run_id", "kind", "record")), rows)

    # --- reading ----------------------------------------------------------------------------------------------

    @property
    def impossible(self) -> dict[int, Broken]:
        """By id the trials that cannot be, superseded ones as well, and why; they stay in the file, and no reader
        gives them, so that one of them makes neither an answer wrong nor the others unreadable.

        The gate keeps such trials out, but a database may be edited, or another's.
        """
        self._every()
        return self._left_out

    @property
    def _left_out(self) -> dict[int, Broken]:
        """Those that were found so far."""
        return self._until_written("left out", dict)

    def _every(self) -> list[Measured]:
        """All trials that can be, superseded ones as well, without their rounds."""
        return self._until_written("trials", lambda: list(self._read(TrialFilter(superseded=True))))

    def _read(self, chosen: TrialFilter, *, rounds: bool = False) -> Iterator[Measured]:
        """Stream the trials that can be, and keep why others cannot."""
        where, values = _where(chosen)
        runs, left_out = {run.id: run.environment for run in self.runs()}, self._left_out
        keys = {id_: environment_key(environment) for id_, environment in runs.items()}
        columns = f"{rowcodec.TRIAL_READ}, trial.each_round" if rounds else rowcodec.TRIAL_READ
        for row in self._rows(f"SELECT {columns} {where} ORDER BY trial.id", values):
            trial_id = row[1]
            if trial_id in left_out:
                continue
            try:
                case = self._case(row[rowcodec.CASE_AT])  # first: what is joined to it is not there without it
                stored = rowcodec.trial(row, case)
                if keys.get(stored.run_id) != stored.environment_key:
                    raise rowcodec.damaged(f"trial {trial_id}", "its run is not there, not readable, or another one's")
                stored = stored._replace(on_processor=_on_processor(case, runs[stored.run_id].backend))
                why = no_figure(broken(case, stored.trial, stored.sums or Sums()))
            except StoreError as error:
                why = Broken("damaged", error.message)
            if why is None:
                yield stored
            else:
                left_out[trial_id] = why

    def models(self) -> dict[str, ModelFacts]:
        """Facts of every model whose row can be read, by model key."""

        def read(row: tuple[Any, ...]) -> tuple[str, ModelFacts]:
            key, *named, text = row
            where = f"model {str(key)[:12]}"
            if not isinstance(key, str):
                raise rowcodec.damaged(where, "its key is no text")
            facts: ModelFacts = rowcodec.decode(text, ModelFacts, where)
            if _named(facts) != tuple(named):
                raise rowcodec.damaged(where, "its columns say something else than its record")
            return key, facts

        return dict(self._readable(read, self._rows(f"SELECT {', '.join(_MODEL)} FROM model ORDER BY id, key")))

    def cases(self) -> dict[str, Case]:
        """Every recorded configuration that can be read, by id, in the order of recording."""
        ids = [case_id for (case_id,) in self._rows('SELECT id FROM "case" ORDER BY rowid')]
        if not self._cases.keys() >= set(ids):
            self._read_cases("1")
        return {case_id: case for case_id in ids if isinstance(case := self._cases.get(case_id), Case)}

    def _case(self, case_id: str) -> Case:
        """Raises: StoreError for one that is not there, or cannot be read."""
        if case_id not in self._cases:
            self._read_cases("id = ?", case_id)
        case = self._cases.get(case_id) or rowcodec.damaged(f"case {case_id}", "it is not there")
        if isinstance(case, StoreError):
            raise case
        return case

    def _read_cases(self, which: str, *values: str) -> None:
        """Read cases, whose columns, which SQL reads, say the same as their records; of others what is wrong."""
        for row in self._rows(f'SELECT {", ".join(rowcodec.CASE)} FROM "case" WHERE {which}', values):
            try:
                self._cases[row[0]] = rowcodec.case(row)
            except StoreError as error:
                self._cases[row[0]] = error
                self.damage[error.message] = None

    def blocks(self, environment: Environment) -> dict[BlockKey, dict[str, Status]]:
        """What the machine and build of `environment` have measured, by block and case: the start of a resumed run."""
        by_block: dict[BlockKey, dict[str, Status]] = {}
        query = (
            "SELECT block.number, block.repeat, trial.case_id, trial.status FROM trial "
            "JOIN block ON block.id = trial.block_id WHERE block.environment_key = ? AND NOT block.superseded "
            "ORDER BY block.id"
        )
        for number, repeat, case_id, status in self._rows(query, (environment_key(environment),)):
            by_block.setdefault(BlockKey(number, repeat), {})[case_id] = Status(status)
        return by_block

    def tries(self, environment: Environment) -> Counter[BlockKey]:
        """How often each block was disturbed on a machine and build, what was superseded included."""
        query = (
            "SELECT number, repeat, count(DISTINCT block.id) FROM block JOIN trial ON trial.block_id = block.id "
            "WHERE block.environment_key = ? AND trial.status IN ('disturbed', 'hot') GROUP BY 1, 2"
        )
        rows = self._rows(query, (environment_key(environment),))
        return Counter({BlockKey(number, repeat): n for number, repeat, n in rows})

    def measured_cases(self) -> list[MeasuredCase]:
        """How many trials each machine and build have of each case."""
        groups = grouped(self.trials(rounds=False), lambda measured: (measured.environment_key, measured.trial.case_id))
        return [
            MeasuredCase(
                *key, len(group), sum(one.trial.valid for one in group), group[-1].id, max(o.run_id for o in group)
            )
            for key, group in sorted(groups.items())
        ]

    def trials(self, chosen: TrialFilter = ALL, *, rounds: bool = True) -> Iterator[Measured]:
        """Stream trials in the order of writing, with their rounds or without."""
        if rounds or chosen != ALL:
            return self._read(chosen, rounds=rounds)
        every, left_out = self._every(), self._left_out
        return (one for one in every if not one.superseded and one.id not in left_out)

    def round_outcomes(self, of: Container[int]) -> Iterator[tuple[Any, ...]]:
        """How often the rounds of these trials of one case and repeat ended alike, with the sums of their times.

        Machine, case, repeat, proposed, accepted, rounds, committed, the parts; a study's rounds never lie in memory.
        """
        outcomes: dict[tuple[Any, ...], tuple[int, ...]] = {}
        for measured in self._read(ALL, rounds=True):
            for each in measured.trial.rounds if measured.id in of else ():
                trial = measured.trial
                key = (measured.environment_key, trial.case_id, trial.repeat, each.proposed, each.accepted)
                added = (1, each.committed, *(getattr(each, part) for part in PARTS))
                outcomes[key] = tuple(map(add, before, added)) if (before := outcomes.get(key)) else added
        return ((*key, *summed) for key, summed in sorted(outcomes.items(), key=lambda item: item[0][:3]))

    def warnings(self) -> list[StoredWarning]:
        rows = self._rows("SELECT code, message, advice, case_id, run_id FROM warning ORDER BY id")
        return [rowcodec.record(StoredWarning, row, f"a warning of run {row[-1]}") for row in rows]

    def distances(self) -> Iterator[DraftDistance]:
        """Stream how far drafts lie from their targets, in the order of measurement."""
        for (record,) in self._rows("SELECT record FROM draft_distance ORDER BY measured_at"):
            yield rowcodec.decode(record, DraftDistance, "a draft's distance")

    def figures(self, kind: type[F]) -> Iterator[tuple[int, F]]:
        """Stream (run id, figure) of one kind, of the runs that can be read."""
        name, what = FIGURES[kind]
        run_ids = {run.id for run in self.runs()}
        reader = msgspec.json.Decoder(kind)
        for run_id, record in self._rows("SELECT run_id, record FROM figure WHERE kind = ? ORDER BY id", (name,)):
            if run_id in run_ids:
                yield run_id, rowcodec.decode(record, reader, f"{what} of run {run_id}")

    def copy(self) -> sqlite3.Connection:
        """A copy of the database in memory."""
        return database.copied(self._connection)

    def runs(self) -> list[Run]:
        """All runs that can be read, oldest first."""
        query = "SELECT id, status, started_at, ended_at, seed, environment, plan, environment_key FROM run ORDER BY id"
        return list(self._until_written("runs", lambda: list(self._readable(rowcodec.run, self._rows(query)))))

    def check(self) -> list[str]:
        """What is wrong with the file: SQLite's own checks, what is missing, and records that cannot be read."""
        problems = [line for (line,) in self._rows("PRAGMA integrity_check") if line != "ok"]
        problems += database.schema_problems(self._connection)
        problems += [
            f"{table} row {row} points to a missing {parent}"
            for table, row, parent, _ in self._rows("PRAGMA foreign_key_check")
        ]
        with suppress(StoreError):  # a reader below says why
            for _ in self.trials(TrialFilter(superseded=True)):
                pass
            problems += [f"trial {trial_id}: {found.sentence}" for trial_id, found in self.impossible.items()]
        readers: list[Callable[[], Iterable[object]]] = [
            self.runs, self.models, self.cases, self.warnings, self.distances,
            *(partial(self.figures, kind) for kind in FIGURES),
        ]  # fmt: skip
        for read in readers:
            try:
                for _ in read():
                    pass
            except StoreError as error:
                problems.append(error.message)
        return [*problems, *self.damage]

    def additions(self) -> list[str]:
        """What of the file mlsd did not make."""
        with database.store_errors(self.path):
            return database.additions(self._connection)

    # --- inside -----------------------------------------------------------------------------------------------

    def _until_written(self, what: str, read: Callable[[], T]) -> T:
        """What was read once, until this or another program writes into the file."""
        with database.store_errors(self.path):
            (others,) = self._connection.execute("PRAGMA data_version").fetchone()
        if self._as_of != (as_of := (others, self._connection.total_changes)):
            self._as_of, self._cached = as_of, {}
        if what not in self._cached:
            self._cached[what] = read()
        value: T = self._cached[what]
        return value

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
        with database.store_errors(self.path), database.transaction(self._connection, self._file.check):
            yield self._connection


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


_MODEL = ("key", "id", "sha256", "architecture", "facts")


def _named(facts: ModelFacts) -> tuple[object, ...]:
    """Columns of a model that repeat for SQL what its record says."""
    return facts.ref.id, facts.ref.sha256, facts.architecture


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # of an INSERT
    return cursor.lastrowid


def _where(chosen: TrialFilter) -> tuple[str, tuple[Any, ...]]:
    """The FROM and WHERE clauses of a filter, and their values."""
    conditions: dict[str, Any] = {
        "trial.id = ?": chosen.trial_id,
        "block.run_id = ?": chosen.run_id,
        '"case".suite = ?': chosen.suite,
        '"case".arm = ?': chosen.arm,
        "(trial.status = 'failed') = ?": chosen.failed,
        "instr(trial.case_id, ?) = 1": chosen.case_id,
        "(trial.status IN ('valid', 'hot')) = ?": chosen.valid,
    }
    used = {condition: value for condition, value in conditions.items() if value is not None}
    current = () if chosen.superseded else ("NOT block.superseded",)
    clause = " AND ".join(("1", *current, *used))
    return f"FROM {rowcodec.TRIAL_FROM} WHERE {clause}", tuple(used.values())


def _on_processor(case: Case, backend: str | None) -> bool:
    """Whether the worker's own threads did all the decoding."""
    return case.source == "engine" and backend == "CPU"

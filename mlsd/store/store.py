"""The study database: blocks of trials, each committed whole before the next one starts.

Owns what is written and how it is read back as records. Nothing is overwritten and nothing is deleted: what is stored
of a block changes only by being superseded, when the same block is measured again on the same machine and build.
Tables of the machine are in `machine_tables`.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import add
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mlsd.errors import StoreError
from mlsd.planning.job import BlockKey
from mlsd.records import Case, Environment, ModelFacts, QualityWarning, Status, Trial
from mlsd.store import database, rowcodec, schema
from mlsd.store.machine_tables import FIGURES, MachineTables, RowStream
from mlsd.store.rows import (
    DraftDistance,
    MeasuredBlock,
    MeasuredCase,
    MeasuredTrials,
    Run,
    RunStatus,
    StoredTrial,
    StoredWarning,
    TrialFilter,
    environment_key,
)
from mlsd.trials.identities import Broken, admitted, broken, no_figure
from mlsd.trials.sums import PARTS, Sums

ALL = TrialFilter()


class Store(MachineTables):
    """One study database. Use as a context manager; `Store.open` is the only way to get one."""

    _impossible: dict[int, Broken] | None = None  # looked at once: what is written meanwhile goes through the gate

    @classmethod
    def open(cls, path: Path, *, create: bool = True, read_only: bool = False) -> Self:
        """Open the database at `path`, made or migrated as needed.

        Read-only never writes, not even a migration. Raises SchemaError for a newer version, StoreError for a file
        that is missing (without `create`), locked, damaged, not writable or not a study database.
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
            return _add_run(db, ("started", _now(), None, seed), environment, plan)

    def add_run(self, run: Run) -> int:
        """Record a run that happened elsewhere, as it was told, and return its id here; its own id does not count."""
        with self._transaction() as db:
            return _add_run(db, (run.status, run.started_at, run.ended_at, run.seed), run.environment, run.plan)

    def end_run(self, run_id: int, status: RunStatus = "finished") -> None:
        with self._transaction() as db:
            db.execute("UPDATE run SET status = ?, ended_at = ? WHERE id = ?", (status, _now(), run_id))

    def add_models(self, models: Iterable[ModelFacts]) -> None:
        """Record what the models' files say; a model known by its hash is replaced."""
        rows = [
            (
                facts.ref.key,
                facts.ref.id,
                facts.ref.sha256,
                facts.architecture,
                rowcodec.encode(facts),
            )
            for facts in models
        ]
        with self._transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO model (key, id, sha256, architecture, facts) VALUES (?,?,?,?,?)", rows
            )

    def add_cases(self, run_id: int, cases: Iterable[Case] | Mapping[str, Case]) -> None:
        """Record configurations; those known already stay with the run that first planned them.

        A mapping gives each case under its id, which saves hashing them again: seconds where there are 100,000.
        """
        by_id = cases.items() if isinstance(cases, Mapping) else ((case.id, case) for case in cases)
        with self._transaction() as db:
            known = {case_id for (case_id,) in db.execute('SELECT id FROM "case"')}
            db.executemany(
                f'INSERT OR IGNORE INTO "case" ({rowcodec.CASE_COLUMNS}) VALUES ({rowcodec.CASE_MARKS})',
                (rowcodec.case_row(case_id, run_id, case) for case_id, case in by_id if case_id not in known),
            )

    def add(
        self, run_id: int, trials: Sequence[Trial], process: str | None = None, *, supersede: bool = True
    ) -> MeasuredTrials:
        """Commit a block: what one process measured of its cases, all or nothing. The one gate into the database.

        Earlier measurements of the same block on the same machine and build are superseded. What breaks an identity
        that every answer rests on is stored as a failed trial with the reason, so that one bad trial of an engine, a
        server, a lab or a record never makes the others unreadable.
        """
        if len({(one.block, one.repeat) for one in trials}) != 1:
            raise StoreError("What is to be stored is not one block.", hint="This is a fault of mlsd: report it.")
        with self._transaction() as db:
            admitted_ = tuple(admitted(self._case(one.case_id), one) for one in trials)
            number, repeat = admitted_[0].block, admitted_[0].repeat
            (key,) = db.execute("SELECT environment_key FROM run WHERE id = ?", (run_id,)).fetchone() or ("",)
            if supersede:
                db.execute(
                    "UPDATE block SET superseded = 1 "
                    "WHERE environment_key = ? AND number = ? AND repeat = ? AND NOT superseded",
                    (key, number, repeat),
                )
            columns = "run_id, environment_key, number, repeat, process"
            values = (run_id, key, number, repeat, process)
            block_id = _row_id(db.execute(f"INSERT INTO block ({columns}) VALUES (?,?,?,?,?)", values))
            insert = f"INSERT INTO trial ({rowcodec.TRIAL_COLUMNS}) VALUES ({rowcodec.TRIAL_MARKS})"
            ids = tuple(_row_id(db.execute(insert, rowcodec.trial_row(block_id, one))) for one in admitted_)
        return MeasuredTrials(block_id, admitted_, ids)

    def _case(self, case_id: str) -> Case:
        for (record,) in self._rows('SELECT record FROM "case" WHERE id = ?', (case_id,)):
            case: Case = rowcodec.decode(record, Case, f"case {case_id}")
            return case
        raise StoreError(f"A trial belongs to the case {case_id}, which is not recorded.", hint="Report this fault.")

    def supersede(self, environment: Environment, case_ids: Iterable[str]) -> None:
        """Let blocks of only these cases on this machine and build count no more, so that they can be measured again.

        They stay in the file; `TrialFilter(superseded=True)` reads them.
        """
        with self._transaction() as db:
            db.execute("CREATE TEMP TABLE again (case_id TEXT PRIMARY KEY)")
            db.executemany("INSERT OR IGNORE INTO again VALUES (?)", [(case_id,) for case_id in case_ids])
            db.execute(
                "UPDATE block SET superseded = 1 WHERE environment_key = ? AND NOT EXISTS ("
                "SELECT 1 FROM trial WHERE trial.block_id = block.id AND trial.case_id NOT IN (SELECT * FROM again))",
                (environment_key(environment),),
            )
            db.execute("DROP TABLE temp.again")

    def add_warnings(self, run_id: int, warnings: Iterable[QualityWarning]) -> None:
        """Record doubts about a run; one already recorded for it is not repeated."""
        with self._transaction() as db:
            known = set(db.execute("SELECT code, message, advice, case_id FROM warning WHERE run_id = ?", (run_id,)))
            rows = [(w.code, w.message, w.advice, w.case_id) for w in warnings]
            db.executemany(
                "INSERT INTO warning (run_id, code, message, advice, case_id) VALUES (?,?,?,?,?)",
                [(run_id, *row) for row in dict.fromkeys(rows) if row not in known],
            )

    def add_distance(self, distance: DraftDistance) -> None:
        """Record how far a draft lies from its target; the same pair measured again on the same text is replaced."""
        key = (distance.target_key, distance.drafting_key, distance.text_sha256, distance.n_tokens)
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO draft_distance VALUES (?,?,?,?,?,?)", (*key, _now(), rowcodec.encode(distance))
            )

    # --- reading ----------------------------------------------------------------------------------------------

    @property
    def impossible(self) -> dict[int, Broken]:
        """By id the trials that cannot be, superseded ones as well, and why; they stay in the file, and no reader
        gives them, so that one of them makes neither an answer wrong nor the others unreadable.

        The gate keeps such trials out, but a database may be old, edited, or another's. Rounds are not read for this:
        whoever reads them leaves out trials whose rounds are not those that were summed up.
        """
        if self._impossible is None:
            self._impossible = {}
            self._connection.execute("CREATE TEMP TABLE impossible (id INTEGER PRIMARY KEY)")
            runs = {run.id: environment_key(run.environment) for run in self.runs()}
            cases: dict[str, Case | StoreError] = {}
            query = f"SELECT {rowcodec.TRIAL_READ} FROM {rowcodec.TRIAL_FROM}"
            self._leave_out({row[0]: found for row in self._rows(query) if (found := self._broken(row, runs, cases))})
        return self._impossible

    def _broken(
        self, row: tuple[Any, ...], runs: Mapping[int, str], cases: dict[str, Case | StoreError]
    ) -> Broken | None:
        """The first thing that is wrong with a trial's row."""
        case_id, run_id, key = row[4], row[2], row[3]
        try:
            if case_id not in cases:  # the case is asked first: what is joined to it is not there without it
                cases[case_id] = self._checked_case(case_id)
            if isinstance(case := cases[case_id], StoreError):
                raise case
            stored = rowcodec.trial(row)
            if runs.get(run_id) != key:
                raise rowcodec.damaged(f"trial {row[0]}", "its run is not there, not readable, or another one's")
        except StoreError as error:
            return Broken("damaged", error.message)
        return no_figure(broken(case, stored.trial, stored.sums or Sums()))

    def _checked_case(self, case_id: str) -> Case | StoreError:
        """The case, whose columns, which views read, say the same as its record; else what is wrong with it."""
        query = f'SELECT {rowcodec.CASE_COLUMNS} FROM "case" WHERE id = ?'
        row = next(iter(self._rows(query, (case_id,))), None)
        if row is None:
            return rowcodec.damaged(f"case {case_id}", "it is not there")
        try:
            case: Case = rowcodec.decode(row[-1], Case, f"case {case_id}")
        except StoreError as error:
            return error
        if rowcodec.case_row(case_id, row[1], case)[:-1] != row[:-1]:
            return rowcodec.damaged(f"case {case_id}", "its columns say something else than its record")
        return case

    def _leave_out(self, found: Mapping[int, Broken]) -> None:
        self._impossible = {**(self._impossible or {}), **found}
        with database.store_errors(self.path):
            ids = [(trial_id,) for trial_id in found]
            self._connection.executemany("INSERT OR IGNORE INTO temp.impossible VALUES (?)", ids)

    def _possible(self, column: str) -> str:
        return f"{column} NOT IN (SELECT id FROM temp.impossible)" if self.impossible else "1"

    def models(self) -> dict[str, ModelFacts]:
        """Facts of every model whose row can be read, by model key."""

        def read(row: tuple[Any, ...]) -> tuple[str, ModelFacts]:
            key, *named, text = row
            where = f"model {str(key)[:12]}"
            if not isinstance(key, str):
                raise rowcodec.damaged(where, "its key is no text")
            facts: ModelFacts = rowcodec.decode(text, ModelFacts, where)
            if [facts.ref.id, facts.ref.sha256, facts.architecture] != named:
                raise rowcodec.damaged(where, "its columns say something else than its record")
            return key, facts

        query = "SELECT key, id, sha256, architecture, facts FROM model ORDER BY id, key"
        return dict(self._readable(read, self._rows(query)))

    def cases(self) -> dict[str, Case]:
        """Every recorded configuration that can be read, by id, in the order of recording."""

        def read(row: tuple[Any, ...]) -> tuple[str, Case]:
            return row[0], rowcodec.decode(row[1], Case, f"case {row[0]}")

        return dict(self._readable(read, self._rows('SELECT id, record FROM "case" ORDER BY rowid')))

    def blocks(self, environment: Environment) -> dict[BlockKey, MeasuredBlock]:
        """What the machine and build of `environment` have measured: the start of a resumed run."""
        found: dict[BlockKey, MeasuredBlock] = {}
        query = (
            "SELECT block.number, block.repeat, trial.case_id, trial.status FROM trial "
            "JOIN block ON block.id = trial.block_id WHERE block.environment_key = ? AND NOT block.superseded "
            "ORDER BY block.id"
        )
        for number, repeat, case_id, status in self._rows(query, (environment_key(environment),)):
            known = found.setdefault(BlockKey(number, repeat), MeasuredBlock({}))
            known.statuses[case_id] = Status(status)
        return found

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
        query = (
            "SELECT environment_key, case_id, count(*), sum(valid), max(id), max(run_id) FROM current_trial "
            f"WHERE {self._possible('id')} GROUP BY 1, 2"
        )
        return [MeasuredCase(*row) for row in self._rows(query)]

    def trials(self, chosen: TrialFilter = ALL, *, rounds: bool = True) -> Iterator[StoredTrial]:
        """Stream trials in the order of writing, with their rounds or without."""
        where, values = self._where(chosen)
        each = "trial.each_round" if rounds else "NULL"
        query = f"SELECT {each}, {rowcodec.TRIAL_READ} FROM {where} ORDER BY trial.id"
        for each_round, *row in self._rows(query, values):
            try:
                yield rowcodec.trial(tuple(row), each_round)
            except StoreError as error:
                self._leave_out({row[0]: Broken("damaged", error.message)})

    def summary(self, chosen: TrialFilter = ALL) -> RowStream:
        """Stream `trial_summary`: one row a trial with the sums of its rounds; never a superseded trial."""
        if chosen == ALL:
            return self._table(f"SELECT * FROM trial_summary WHERE {self._possible('trial_id')} ORDER BY trial_id")
        where, values = self._where(chosen)
        return self._table(
            f"SELECT * FROM trial_summary WHERE trial_id IN (SELECT trial.id FROM {where}) ORDER BY trial_id", values
        )

    def round_outcomes(self) -> RowStream:
        """Stream how often the rounds of the trials of one case and repeat ended alike, with the sums of their times.

        Only rounds of valid trials; one row for each (proposed, accepted), so a study's rounds never lie in memory.
        """
        found: dict[tuple[Any, ...], tuple[int, ...]] = {}
        query = (
            "SELECT environment_key, case_id, repeat, id, each_round FROM current_trial AS trial "
            f"WHERE valid AND {self._possible('trial.id')} ORDER BY environment_key, case_id, repeat"
        )
        for *place, trial_id, each_round in self._rows(query):
            try:
                rows = rowcodec.round_rows(trial_id, each_round)
            except StoreError as error:
                self._leave_out({trial_id: Broken("damaged", error.message)})
                continue
            for proposed, accepted, committed, _, *spans_ns in rows:
                key = (*place, proposed, accepted)
                known = found.get(key)
                added = (1, committed, *spans_ns)
                found[key] = added if known is None else tuple(map(add, known, added))
        columns = ("environment_key", "case_id", "repeat", "proposed", "accepted", "rounds", "committed", *PARTS)
        return RowStream(columns, ((*key, *sums) for key, sums in found.items()))

    def warnings(self) -> list[StoredWarning]:
        rows = self._rows("SELECT code, message, advice, case_id, run_id FROM warning ORDER BY id")
        return [rowcodec.record(StoredWarning, row, f"a warning of run {row[-1]}") for row in rows]

    def distances(self) -> Iterator[DraftDistance]:
        """Stream how far drafts lie from their targets, in the order of measurement."""
        for (record,) in self._rows("SELECT record FROM draft_distance ORDER BY measured_at"):
            yield rowcodec.decode(record, DraftDistance, "a draft's distance")

    def check(self) -> list[str]:
        """What is wrong with the file: SQLite's own checks, what is missing, and records that cannot be read."""
        problems = [line for (line,) in self._rows("PRAGMA integrity_check") if line != "ok"]
        problems += database.schema_problems(self._connection, schema.CURRENT_VERSION)
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

    def _where(self, chosen: TrialFilter) -> tuple[str, tuple[Any, ...]]:
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
        clause = " AND ".join((self._possible("trial.id"), *current, *used))
        joined = rowcodec.TRIAL_FROM.replace("LEFT JOIN", "JOIN")
        return f"{joined} WHERE {clause}", tuple(used.values())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _add_run(
    db: sqlite3.Connection, values: tuple[object, ...], environment: Environment, plan: Mapping[str, Any]
) -> int:
    columns = "status, started_at, ended_at, seed, environment_key, environment, plan"
    stored = (environment_key(environment), rowcodec.encode(environment), rowcodec.plan(plan))
    return _row_id(db.execute(f"INSERT INTO run ({columns}) VALUES (?,?,?,?,?,?,?)", (*values, *stored)))


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # of an INSERT
    return cursor.lastrowid

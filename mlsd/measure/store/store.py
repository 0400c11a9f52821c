"""The study database: every trial with all its rounds, committed before the next one starts.

Owns what is written and how it is read back as records. Nothing is overwritten and nothing is deleted: in reading, a
failed trial is superseded by a later trial of the same case, block and repeat on the same machine, and a success
counts until it is retired to be measured again. Tables of the machine are in `machine_tables`.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mlsd.errors import StoreError
from mlsd.measure.store import database, rowcodec, schema
from mlsd.measure.store.impossible import impossible_trials
from mlsd.measure.store.machine_tables import FIGURES, MachineTables, RowStream
from mlsd.measure.store.rows import (
    DraftDistance,
    FinishedTrials,
    ImportedRow,
    MeasuredCase,
    Run,
    RunStatus,
    StoredTrial,
    StoredWarning,
    TrialFilter,
    TrialKey,
    environment_key,
    model_key,
)
from mlsd.records import Case, Environment, ModelFacts, QualityWarning, Trial
from mlsd.trials.identities import Broken, admitted
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
                model_key(facts.ref.sha256, facts.ref.id),
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

    def admit(self, run_id: int, trial: Trial) -> Trial:
        """Store a trial that somebody measured, and return it as it was stored: the one gate into the database.

        What breaks an identity that every answer rests on becomes a failed trial with the reason, so that one bad
        trial of an engine, a server, a lab or a record never makes the others unreadable.
        """
        for (record,) in self._rows('SELECT record FROM "case" WHERE id = ?', (trial.case_id,)):
            trial = admitted(rowcodec.decode(record, Case, f"case {trial.case_id}"), trial)
        self.add_trial(run_id, trial)
        return trial

    def add_trial(self, run_id: int, trial: Trial) -> int:
        """Commit a trial with all its rounds, all or nothing, and return its id; its case must be recorded."""
        with self._transaction() as db:
            found = db.execute("SELECT environment_key FROM run WHERE id = ?", (run_id,)).fetchone()
            key = found[0] if found else ""
            cursor = db.execute(
                f"INSERT INTO trial ({rowcodec.TRIAL_COLUMNS}) VALUES ({rowcodec.TRIAL_MARKS})",
                rowcodec.trial_row(run_id, key, trial),
            )
            trial_id = _row_id(cursor)
            db.executemany(
                f"INSERT INTO round ({rowcodec.ROUND_COLUMNS}) VALUES ({rowcodec.ROUND_MARKS})",
                rowcodec.round_rows(trial_id, trial.rounds),
            )
        return trial_id

    def retire(self, environment: Environment, case_ids: Iterable[str], *, disturbed: bool = False) -> None:
        """Let what this machine and build measured of these cases count no more, so that it can be measured again.

        With `disturbed` only trials that were. All stay in the file; `TrialFilter(superseded=True)` reads them.
        """
        key = environment_key(environment)
        with self._transaction() as db:
            db.executemany(
                "UPDATE trial SET retired = 1 "
                "WHERE environment_key = ? AND case_id = ? AND (disturbed AND NOT valid) >= ?",
                [(key, case_id, disturbed) for case_id in case_ids],
            )

    def mark_disturbed(self, reasons: Mapping[int, str], *, kept: bool = False) -> None:
        """Say of trials, by id, why their times must not be used, or are `kept`, as only their neighbours can tell."""
        with self._transaction() as db:
            db.executemany(
                "UPDATE trial SET valid = ?, disturbed = 1, invalid_reason = ? WHERE id = ? AND valid",
                [(kept, None if kept else reason, trial_id) for trial_id, reason in reasons.items()],
            )

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
        """By id the trials that cannot be, and why; no reader gives them."""
        if self._impossible is None:
            runs = {run.id: environment_key(run.environment) for run in self.runs()}
            with database.store_errors(self.path):
                self._impossible = impossible_trials(self._connection, lambda one: tuple(self._rounds_of(one)), runs)
                self._connection.execute("CREATE TEMP TABLE impossible (id INTEGER PRIMARY KEY)")
                ids = [(trial_id,) for trial_id in self._impossible]
                self._connection.executemany("INSERT INTO impossible VALUES (?)", ids)
        return self._impossible

    def _possible(self, column: str) -> str:
        return f"{column} NOT IN (SELECT id FROM temp.impossible)" if self.impossible else "1"

    def models(self) -> dict[str, ModelFacts]:
        """Facts of every model whose row can be read, by model key."""

        def read(row: tuple[Any, ...]) -> tuple[str, ModelFacts]:
            key, facts = row
            where = f"model {str(key)[:12]}"
            if not isinstance(key, str):
                raise rowcodec.damaged(where, "its key is no text")
            return key, rowcodec.decode(facts, ModelFacts, where)

        return dict(self._readable(read, self._rows("SELECT key, facts FROM model ORDER BY id, key")))

    def cases(self) -> dict[str, Case]:
        """Every recorded configuration that can be read, by id, in the order of recording."""

        def read(row: tuple[Any, ...]) -> tuple[str, Case]:
            return row[0], rowcodec.decode(row[1], Case, f"case {row[0]}")

        return dict(self._readable(read, self._rows('SELECT id, record FROM "case" ORDER BY rowid')))

    def done(self, environment: Environment) -> FinishedTrials:
        """What the machine and build of `environment` have measured: the start of a resumed run."""
        ok, failed = Counter[TrialKey](), Counter[TrialKey]()
        query = (
            "SELECT case_id, block, repeat, sum(status = 'ok'), count(*) FROM trial "
            "WHERE environment_key = ? AND NOT retired "
            "GROUP BY case_id, block, repeat"
        )
        for case_id, block, repeat, n_ok, n_all in self._rows(query, (environment_key(environment),)):
            (ok if n_ok else failed)[TrialKey(case_id, block, repeat)] = n_ok or n_all
        return FinishedTrials(ok=ok, failed=failed)

    def disturbed(self, environment: Environment) -> Counter[str]:
        """How many trials of each case were disturbed on a machine and build, those of no account included."""
        query = "SELECT case_id, count(*) FROM trial WHERE environment_key = ? AND disturbed GROUP BY 1"
        return Counter(dict(self._rows(query, (environment_key(environment),))))

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
        for row in self._rows(f"SELECT {rowcodec.TRIAL_READ} FROM {where} ORDER BY trial.id", values):
            trial_id = row[0]
            yield rowcodec.trial(row, tuple(self._rounds_of(trial_id)) if rounds else ())

    def summary(self, chosen: TrialFilter = ALL) -> RowStream:
        """Stream `trial_summary`: one row a trial with the sums of its rounds; never a superseded trial."""
        if chosen == ALL:
            return self._table(f"SELECT * FROM trial_summary WHERE {self._possible('trial_id')} ORDER BY trial_id")
        where, values = self._where(chosen)
        return self._table(
            f"SELECT * FROM trial_summary WHERE trial_id IN (SELECT trial.id FROM {where}) ORDER BY trial_id", values
        )

    def round_sums(self) -> dict[int, Sums]:
        """What the rounds of each trial sum to, by its id."""
        names = ("proposed", "accepted", "committed", "rows", *PARTS)
        summed = ", ".join(f"sum({name})" for name in names)
        rows = self._table(f"SELECT trial_id, count(*) AS rounds, {summed} FROM round GROUP BY trial_id").rows
        return {row[0]: Sums(**dict(zip(("rounds", *names), row[1:], strict=True))) for row in rows}

    def round_outcomes(self) -> RowStream:
        """Stream how often the rounds of the trials of one case and repeat ended alike, with the sums of their times.

        Only rounds of valid trials; one row for each (proposed, accepted), so a study's rounds never lie in memory.
        """
        return self._table(
            "SELECT trial.environment_key, trial.case_id, trial.repeat, proposed, accepted, count(*) AS rounds, "
            "sum(committed) AS committed, sum(draft_ns) AS draft_ns, sum(verify_ns) AS verify_ns, "
            "sum(rollback_ns) AS rollback_ns, sum(sample_ns) AS sample_ns, sum(other_ns) AS other_ns "
            "FROM current_trial AS trial JOIN round ON round.trial_id = trial.id "
            f"WHERE trial.valid AND {self._possible('trial.id')} "
            "GROUP BY trial.environment_key, trial.case_id, trial.repeat, proposed, accepted"
        )

    def warnings(self) -> list[StoredWarning]:
        rows = self._rows("SELECT run_id, code, message, advice, case_id FROM warning ORDER BY id")
        return [rowcodec.record(StoredWarning, row, f"a warning of run {row[0]}") for row in rows]

    def distances(self) -> Iterator[DraftDistance]:
        """Stream how far drafts lie from their targets, in the order of measurement."""
        for (record,) in self._rows("SELECT record FROM draft_distance ORDER BY measured_at"):
            yield rowcodec.decode(record, DraftDistance, "a draft's distance")

    def imported(self) -> Iterator[ImportedRow]:
        """Stream the rows of other people's tables, in the order of import."""
        for (record,) in self._rows("SELECT record FROM imported ORDER BY id"):
            yield rowcodec.decode(record, ImportedRow, "an imported row")

    def check(self) -> list[str]:
        """What is wrong with the file: SQLite's own checks, what is missing, and records that cannot be read."""
        problems = [line for (line,) in self._rows("PRAGMA integrity_check") if line != "ok"]
        problems += database.schema_problems(self._connection, schema.CURRENT_VERSION)
        problems += [
            f"{table} row {row} points to a missing {parent}"
            for table, row, parent, _ in self._rows("PRAGMA foreign_key_check")
        ]
        with suppress(StoreError):  # a reader below says why
            problems += [f"trial {trial_id}: {found.sentence}" for trial_id, found in self.impossible.items()]
        readers: list[Callable[[], Iterable[object]]] = [
            self.runs, self.models, self.cases, self.warnings, self.distances, self.imported,
            *(partial(self.figures, kind) for kind in FIGURES),
        ]  # fmt: skip
        for read in readers:
            try:
                for _ in read():
                    pass
            except StoreError as error:
                problems.append(error.message)
        return [*problems, *self.damage]

    # --- inside -----------------------------------------------------------------------------------------------

    def _where(self, chosen: TrialFilter) -> tuple[str, tuple[Any, ...]]:
        """The FROM and WHERE clauses of a filter, and their values."""
        source = "trial" if chosen.superseded else "current_trial AS trial"
        conditions: dict[str, Any] = {
            "trial.id = ?": chosen.trial_id,
            "trial.run_id = ?": chosen.run_id,
            '"case".suite = ?': chosen.suite,
            "trial.arm = ?": chosen.arm,
            "trial.status = ?": chosen.status,
            "instr(trial.case_id, ?) = 1": chosen.case_id,
            "trial.valid = ?": chosen.valid,
        }
        used = {condition: value for condition, value in conditions.items() if value is not None}
        clause = " AND ".join((self._possible("trial.id"), *used))
        return f'{source} JOIN "case" ON "case".id = trial.case_id WHERE {clause}', tuple(used.values())

    def _rounds_of(self, trial_id: int) -> Iterator[Any]:
        query = f"SELECT {rowcodec.ROUND_COLUMNS} FROM round WHERE trial_id = ? ORDER BY number"
        return (rowcodec.round_(row) for row in self._rows(query, (trial_id,)))


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

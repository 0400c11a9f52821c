"""A study as one compressed JSON file that others can check: what was measured where, every trial with its rounds.

The file is gzip over ``{"format", "schema", "digest", "study"}``; the digest is the SHA-256 of the study's bytes as
they stand, against accidents. To be small, rounds stand column by column, and equal outputs once, by their hash. It
says nothing of who measured: no host name, no user name, no path; machines are told apart by the key of their host.
Whether what it says can be true is asked by `mlsd.analysis.audit.record_identities`.
"""

from __future__ import annotations

import datetime
import getpass
import gzip
import hashlib
import io
import platform
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import InputError, TableError
from mlsd.formats import write_file
from mlsd.limits import RECORD_BYTES, RECORD_VALUES
from mlsd.outside import read_file
from mlsd.planning.job import BlockKey
from mlsd.records import Case, Environment, ModelFacts, QualityWarning, Record, Round, Status, Trial
from mlsd.store import rowcodec, schema, sessions
from mlsd.store.pass_shares import PassShares
from mlsd.store.rows import (
    CalibrationPoint,
    Coverage,
    DraftDistance,
    ExpertLoad,
    MeasuredBlock,
    Run,
    RunStatus,
    StoredTrial,
    StoredWarning,
    StreamRead,
    TimedPass,
    TrialFilter,
    environment_key,
)
from mlsd.store.store import Store
from mlsd.trials.acceptance import rate_of
from mlsd.trials.results import SessionPlan
from mlsd.trials.sums import decode_tok_s, prefill_tok_s, share, sums_of
from mlsd.trials.sums import sums as sums_over
from mlsd.version import __version__

FORMAT, SCHEMA = "mlsd record", 2  # 1: a trial said in five fields what its status and reason say
_FIELDS = Round.__struct_fields__
_COUNTERS = (None, "processor, powercap", "chip, zeus-apple-silicon", "GPU, NVML")  # of energy, in earlier records
_LONG_NUMBER = re.compile(rb"[:,\[]\s*(-?\d{19,})\s*[,\]}]")


class RecordedRun(Record, frozen=True, kw_only=True):
    """One run: the environment card of its machine, and what was asked for."""

    id: int
    environment_key: str  # of the environment
    environment: Environment
    status: RunStatus
    started_at: str
    ended_at: str | None
    seed: int
    profile: str | None = None
    suites: tuple[str, ...] = ()
    decides: SessionPlan | None = None  # what it planned to decide; None: of before this was stored


class RecordedTrial(Record, frozen=True, kw_only=True):
    """One trial. What follows from its counts and times is stored as well, so that one altered figure shows."""

    run: int
    trial: Trial  # without tokens, text and rounds
    output: str | None  # hash of its tokens, see `output_key`
    sums: dict[str, int]  # over its rounds, by field
    rates: dict[str, float]  # see `rates`


class RecordedWarning(Record, frozen=True, kw_only=True):
    """A doubt about a run."""

    run: int
    warning: QualityWarning


class MachineFigures(Record, frozen=True, kw_only=True):
    """What was measured beside trials, each with the number of its run."""

    calibration: tuple[tuple[int, CalibrationPoint], ...] = ()
    coverage: tuple[tuple[int, Coverage], ...] = ()
    expert_loads: tuple[tuple[int, ExpertLoad], ...] = ()
    stream_reads: tuple[tuple[int, StreamRead], ...] = ()
    known_passes: tuple[tuple[int, TimedPass], ...] = ()
    shares: tuple[tuple[int, PassShares], ...] = ()


_KINDS: dict[str, Any] = {  # by field of `MachineFigures`
    "calibration": CalibrationPoint, "coverage": Coverage, "expert_loads": ExpertLoad, "stream_reads": StreamRead,
    "known_passes": TimedPass, "shares": PassShares,
}  # fmt: skip


class StudyRecord(Record, frozen=True, kw_only=True):
    """Everything in a record."""

    made: str  # date, UTC
    mlsd_version: str
    runs: tuple[RecordedRun, ...]
    models: dict[str, ModelFacts]  # by model key
    cases: dict[str, Case]  # by id
    outputs: dict[str, tuple[int, ...]]  # by `output_key`
    trials: tuple[RecordedTrial, ...]
    rounds: dict[str, tuple[tuple[int, ...], ...]]  # field of a Round -> its values in each trial, see `coded`
    n_superseded: int  # trials that were measured again and stand not here
    warnings: tuple[RecordedWarning, ...] = ()
    machine: MachineFigures = MachineFigures()
    distances: tuple[DraftDistance, ...] = ()


class RecordFile(Record, frozen=True, kw_only=True):
    """A record as it was read."""

    study: StudyRecord
    digest: str  # of the study's bytes
    stated_digest: str
    canonical: bool  # nothing stands in it that the schema does not know
    n_bytes: int


class _Envelope(msgspec.Struct, frozen=True):
    format: str
    schema: int
    digest: str
    study: msgspec.Raw


class Imported(Record, frozen=True, kw_only=True):
    """What of a record went into a database."""

    n_new: int
    n_known: int  # trials that were there already
    machines: tuple[str, ...]  # their environment keys


# --- what follows from counts and times -------------------------------------------------------------------------


def output_key(tokens: Iterable[int]) -> str:
    """SHA-256 of the output's token ids, as a JSON list without spaces."""
    return hashlib.sha256(msgspec.json.encode(list(tokens))).hexdigest()


LATER_RATES = ("accepted_of_output", "acceptance_by_position")  # records of before there were these lack them


def rates(trial: Trial) -> dict[str, float]:
    """Decode and prefill tok/s, MGL and acceptance in its three meanings, where counts and times give them."""
    counted = sums_of([trial])
    drafted = counted.acceptance_rate is not None and counted.mgl is not None
    found = {
        "decode_tok_s": decode_tok_s(len(trial.tokens), trial.decode_ns),
        "prefill_tok_s": prefill_tok_s(trial),
        "acceptance_rate": counted.acceptance_rate,
        "accepted_of_output": share(counted.accepted, counted.committed) if drafted else None,
        "acceptance_by_position": rate_of(counted.mgl or 0.0, "position", trial.gamma) if drafted else None,
        "mgl": counted.mgl,
    }
    return {name: value for name, value in found.items() if value is not None}


def sums(rounds: Iterable[Round]) -> dict[str, int]:
    """The sum of every field over rounds; none for no round."""
    whole = sums_over(rounds)
    return {name: getattr(whole, name) for name in _FIELDS} if whole.rounds else {}


def coded(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """A column of one trial as it stands in the file: times as their median and each one's difference from it."""
    if not values or not name.endswith("_ns"):
        return tuple(values)
    middle = sorted(values)[len(values) // 2]
    return (middle, *(value - middle for value in values))


def _decoded(name: str, column: Sequence[int]) -> Sequence[int]:
    return [column[0] + value for value in column[1:]] if column and name.endswith("_ns") else column


def whole_trials(study: StudyRecord) -> Iterator[Trial]:
    """The trials with their tokens and rounds. Raises: TableError where the columns are no rounds."""
    for place, recorded in enumerate(study.trials):
        try:
            table = [_decoded(name, study.rounds[name][place]) for name in _FIELDS]
            rows = zip(*table, strict=True)
            made = tuple(Round(**dict(zip(_FIELDS, row, strict=True))) for row in rows)
        except (KeyError, IndexError, ValueError) as error:
            raise TableError(f"Trial {place} of the record has rounds with missing values.") from error
        tokens = study.outputs.get(recorded.output or "", ())
        yield msgspec.structs.replace(recorded.trial, tokens=tokens, rounds=made)


# --- writing ----------------------------------------------------------------------------------------------------


def make_record(store: Store) -> StudyRecord:
    """The record of all trials of a database that count, and of what was measured beside them.

    Those of other programs' servers are not included: their counts are what a server says, and agree with nothing.
    """
    outputs: dict[str, tuple[int, ...]] = {}
    table: dict[str, list[tuple[int, ...]]] = {name: [] for name in _FIELDS}
    own = {case_id: case for case_id, case in store.cases().items() if case.source == "engine"}
    recorded = tuple(_recorded(one, outputs, table) for one in store.trials() if one.trial.case_id in own)
    n_all = sum(one.trial.case_id in own for one in store.trials(TrialFilter(superseded=True), rounds=False))
    used = {one.trial.case_id for one in recorded}
    return StudyRecord(
        made=datetime.datetime.now(datetime.UTC).date().isoformat(),
        mlsd_version=__version__,
        runs=tuple(map(_recorded_run, store.runs())),
        models=store.models(),
        cases={case_id: case for case_id, case in own.items() if case_id in used},
        outputs=outputs,
        trials=recorded,
        rounds={name: tuple(columns) for name, columns in table.items()},
        n_superseded=n_all - len(recorded),
        warnings=tuple(_recorded_warning(w) for w in store.warnings() if w.case_id is None or w.case_id in used),
        machine=MachineFigures(**{name: tuple(store.figures(kind)) for name, kind in _KINDS.items()}),
        distances=tuple(store.distances()),
    )


def _recorded(
    stored: StoredTrial, outputs: dict[str, tuple[int, ...]], table: dict[str, list[tuple[int, ...]]]
) -> RecordedTrial:
    trial, key = stored.trial, None
    if trial.tokens:
        key = output_key(trial.tokens)
        outputs[key] = trial.tokens
    for name, columns in table.items():
        columns.append(coded(name, [getattr(one, name) for one in trial.rounds]))
    anonymous = {name: _anonymous(getattr(trial, name)) for name in ("reason", "fell_back")}
    return RecordedTrial(
        run=stored.run_id,
        trial=msgspec.structs.replace(trial, tokens=(), text=None, rounds=(), **anonymous),
        output=key,
        sums=sums(trial.rounds),
        rates=rates(trial),
    )


def _recorded_run(run: Run) -> RecordedRun:
    return RecordedRun(
        environment_key=environment_key(run.environment),
        profile=run.plan.get("profile"),
        suites=tuple(Path(suite).stem for suite in run.plan.get("suites") or ()),
        decides=run.decides,
        **_same(run),
    )


def _same(run: Run | RecordedRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in Run.__struct_fields__ if name != "plan"}


def _recorded_warning(stored: StoredWarning) -> RecordedWarning:
    fields = {name: getattr(stored, name) for name in QualityWarning.__struct_fields__}
    return RecordedWarning(
        run=stored.run_id, warning=QualityWarning(**{**fields, "message": _anonymous(stored.message)})
    )


def _anonymous(text: Any) -> Any:
    """A text that a program wrote, without folders and without the names of this machine and its user."""
    for name, instead in ((platform.node(), "HOST"), (_user(), "USER")):
        if text is not None and name:
            text = re.sub(rf"\b{re.escape(name)}\b", instead, text)
    return rowcodec.without_folders(text)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return ""


def pack(study: StudyRecord) -> bytes:
    """The bytes of a record's file; equal records give equal bytes."""
    body = msgspec.json.encode(study)
    envelope = _Envelope(format=FORMAT, schema=SCHEMA, digest=hashlib.sha256(body).hexdigest(), study=msgspec.Raw(body))
    return gzip.compress(msgspec.json.encode(envelope), compresslevel=9, mtime=0)


def write_record(store: Store, path: Path) -> StudyRecord:
    """Write the record of a database to a file that appears whole or not at all. Raises: InputError, StoreError."""
    study = make_record(store)
    if not study.trials and any(store.trials(rounds=False)):
        raise InputError("It holds only trials of servers.", hint="A record holds what mlsd's own loop measured.")
    write_file(path, lambda out: out.write(pack(study)))
    return study


# --- reading ----------------------------------------------------------------------------------------------------


def read_record(path: Path) -> RecordFile:
    """Raises: TableError for a file that is not a record, or of a newer mlsd."""
    hint = "Give a file that `mlsd record DB -o FILE` wrote."
    try:
        packed = read_file(path)
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            data = file.read(RECORD_BYTES.most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TableError(f"{path} is not a record: {error}.", hint=hint) from error
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.", hint=hint) from error
    _check_size(data, path)
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format != FORMAT:
            raise TableError(f"{path} is a {envelope.format[:40]!r}, not a record.", hint=hint)
        if envelope.schema > SCHEMA:
            raise TableError(
                f"{path} has schema {envelope.schema}; this mlsd knows up to {SCHEMA}.", hint="Upgrade mlsd."
            )
        body = bytes(envelope.study)
        told = body if envelope.schema > 1 else _with_status(body)
        study = msgspec.json.decode(told, type=StudyRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TableError(f"{path} is not a record: {error}.", hint=hint) from error
    digest = hashlib.sha256(body).hexdigest()
    meant, fields = msgspec.json.encode(study), msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    known = fields.keys() == set(_Envelope.__struct_fields__)
    known = known and (told == meant or _within(msgspec.json.decode(told), msgspec.json.decode(meant)))
    return RecordFile(study=study, digest=digest, stated_digest=envelope.digest, canonical=known, n_bytes=len(packed))


def _with_status(body: bytes) -> bytes:
    """A study of schema 1 with its trials as they are told now. Raises: msgspec.DecodeError."""
    study = msgspec.json.decode(body, type=dict[str, Any])
    study["trials"] = msgspec.convert(study.get("trials", ()), list[dict[str, Any]])
    for one in study["trials"]:
        trial = msgspec.convert(one.get("trial"), dict[str, Any])
        failed, valid = trial.get("status") == "failed", trial.pop("valid", False)
        why, error = trial.pop("invalid_reason", None), trial.pop("error", None)
        disturbed = trial.pop("disturbed", False) or str(why).startswith("disturbed")  # before there was the field
        verdict = msgspec.convert(trial.get("losslessness") or {}, dict[str, Any]).get("verdict")
        if failed:
            status, reason = Status.FAILED, error or "no reason given"
        elif disturbed and (verdict == "diverged" or trial.get("failed_native_calls")):
            status, reason = Status.INVALID, why or "no reason given"
        elif disturbed:
            status, reason = Status.HOT if valid else Status.DISTURBED, why or "passes were slower than before"
        else:
            status, reason = Status.VALID if valid else Status.INVALID, why if valid else why or "no reason given"
        trial |= {"status": status, "reason": reason}
        one["trial"] = trial
    return msgspec.json.encode(study)


def _check_size(data: bytes, path: Path) -> None:
    """Refuse, before anything is built of it, what would take much memory or holds numbers that no database can."""
    n_values = data.count(b",") + data.count(b"[") + data.count(b"{")
    for limit, n in ((RECORD_BYTES, len(data)), (RECORD_VALUES, n_values)):
        if n > limit.most:
            raise TableError(f"{path} is above {limit.words}.", hint=limit.hint)
    for found in _LONG_NUMBER.finditer(data):
        if len(found[1]) > 20 or not -(1 << 63) <= int(found[1]) < 1 << 63:
            raise TableError(f"{path} holds a whole number beyond 64 bits.", hint="mlsd wrote no such record.")


def _within(found: Any, meant: Any) -> bool:
    """Whether every field is one of the schema, or was (energy); a field that this version added may be missing."""
    if found == meant:
        return True
    if isinstance(found, dict) and isinstance(meant, dict):
        return all(_gone(key, own) or (key in meant and _within(own, meant[key])) for key, own in found.items())
    lists = isinstance(found, list) and isinstance(meant, list) and len(found) == len(meant)
    return lists and all(map(_within, found, meant))


def _gone(key: str, value: Any) -> bool:
    is_number = value is None or isinstance(value, int | float)
    return (key == "energy_mj" and is_number) or (key == "energy_source" and value in _COUNTERS)


# --- into a database --------------------------------------------------------------------------------------------


def import_record(store: Store, file: RecordFile) -> Imported:
    """Add a record without problems to a database, each machine under its own key.

    What is there stays as it is, but for blocks that have failed or disturbed trials where the record has better ones:
    those are superseded. Raises: StoreError.
    """
    study, numbers, fresh = file.study, {}, {}
    environments = {run.id: run.environment for run in study.runs}
    known = {(environment_key(run.environment), run.started_at, run.seed): run.id for run in store.runs()}
    store.add_models(study.models.values())
    for run in study.runs:
        number = known.get((run.environment_key, run.started_at, run.seed))
        if number is None:
            plan = {"profile": run.profile, "suites": run.suites, schema.FROM_RECORD: file.digest}
            plan |= {} if run.decides is None else sessions.as_stored(run.decides)
            number = fresh[run.id] = store.add_run(Run(plan=plan, **_same(run)))
        numbers[run.id] = number
    for run_id, number in numbers.items():
        used = {one.trial.case_id for one in study.trials if one.run == run_id}
        store.add_cases(number, {case_id: case for case_id, case in study.cases.items() if case_id in used})
    n_new = 0
    blocks: dict[tuple[int, int, int], list[Trial]] = {}
    for one, trial in zip(study.trials, whole_trials(study), strict=True):
        blocks.setdefault((one.run, trial.block, trial.repeat), []).append(trial)
    there = {
        key: store.blocks(run.environment) for key, run in {run.environment_key: run for run in study.runs}.items()
    }
    for (run_id, number, repeat), trials in blocks.items():
        of_machine = there[environment_key(environments[run_id])]
        found = of_machine.setdefault(BlockKey(number, repeat), MeasuredBlock({})).statuses
        better = any(t.valid and t.case_id in found and not found[t.case_id].counts for t in trials)
        if better or any(trial.case_id not in found for trial in trials):
            store.add(numbers[run_id], trials, supersede=better)
            found |= {trial.case_id: trial.status for trial in trials}
            n_new += len(trials)
    for run_id, number in fresh.items():
        store.add_warnings(number, [one.warning for one in study.warnings if one.run == run_id])
        figures = (row for name in _KINDS for row in getattr(study.machine, name))
        store.add_figures(number, (figure for run, figure in figures if run == run_id))
    for distance in study.distances if fresh else ():
        store.add_distance(distance)
    machines = tuple(dict.fromkeys(environment_key(environments[one.run]) for one in study.trials))
    return Imported(n_new=n_new, n_known=len(study.trials) - n_new, machines=machines)

"""Records as mlsd wrote them up to version 0.3, read as the database that they were made of.

Such a file is gzip over ``{"format", "schema", "digest", "study"}``; the digest is the SHA-256 of the study's bytes.
Rounds stand column by column, times as their median and each one's difference from it; equal outputs once, by their
hash.
"""

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import StoreError, TableError
from mlsd.limits import RECORD_VALUES
from mlsd.records import Case, ModelFacts, QualityWarning, Round, Status, Trial
from mlsd.stats import grouped
from mlsd.store import database, rows
from mlsd.store.store import Store

_FORMAT, _SCHEMA = "mlsd record", 2  # 1: a trial said in five fields what its status and reason say
_FIELDS = Round.__struct_fields__
_KINDS: dict[str, Any] = {
    "calibration": rows.CalibrationPoint, "coverage": rows.Coverage, "expert_loads": rows.ExpertLoad,
    "stream_reads": rows.StreamRead, "known_passes": rows.TimedPass, "shares": rows.PassShares,
}  # fmt: skip
_LONG_NUMBER = re.compile(rb"[:,\[]\s*(-?\d{19,})\s*[,\]}]")


class _Envelope(msgspec.Struct, frozen=True):
    format: str
    schema: int
    digest: str
    study: msgspec.Raw


def convert(data: bytes, path: Path) -> bytes:
    """The bytes of the database. Raises: TableError for what is no record, of a newer mlsd, or contradicts itself."""
    n_values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if n_values > RECORD_VALUES.most:
        raise TableError(f"{path} is above {RECORD_VALUES.words}.", hint=RECORD_VALUES.hint)
    for found in _LONG_NUMBER.finditer(data):
        if len(found[1]) > 20 or not -(1 << 63) <= int(found[1]) < 1 << 63:
            raise TableError(f"{path} holds a whole number beyond 64 bits.", hint="mlsd wrote no such record.")
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format != _FORMAT:
            raise TableError(f"{path} is a {envelope.format[:40]!r}, not a record.")
        if envelope.schema > _SCHEMA:
            raise TableError(f"{path} has schema {envelope.schema}; this mlsd reads up to {_SCHEMA}, and databases.")
        if hashlib.sha256(bytes(envelope.study)).hexdigest() != envelope.digest:
            raise TableError(f"{path} was changed after it was written: its digest is another one.")
        study = msgspec.json.decode(envelope.study, type=dict[str, Any])
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "record.sqlite"
            _fill(place, study, path)
            return database.whole_bytes(place)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TableError(f"{path} is not a record: {error}.") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, StoreError) as error:
        raise TableError(f"{path} is not a record: {type(error).__name__} at {error}.") from error


def _fill(place: Path, study: dict[str, Any], path: Path) -> None:
    cases = msgspec.convert(study["cases"], dict[str, Case])
    with Store.open(place) as store:
        store.add_models(msgspec.convert(study["models"], dict[str, ModelFacts]).values())
        numbers = {}
        for run in study["runs"]:
            plan = {name: run.get(name) for name in ("profile", "suites", "decides") if run.get(name) is not None}
            numbers[run["id"]] = store.add_run(msgspec.convert(run | {"plan": plan}, rows.Run))
        told = [(numbers[one["run"]], _trial(study, i, one)) for i, one in enumerate(study["trials"])]
        for number in numbers.values():
            used = {trial.case_id for run, trial in told if run == number}
            store.add_cases(number, {case_id: cases[case_id] for case_id in cases if case_id in used})
        for (number, _, _), own in grouped(told, lambda one: (one[0], one[1].block, one[1].repeat)).items():
            block = [trial for _, trial in own]
            if [one.trial for one in store.add(number, block, supersede=False)] != block:
                raise TableError(f"{path} contradicts itself: a trial of block {block[0].block} cannot be.")
        for one in study.get("warnings", ()):
            store.add_warnings(numbers[one["run"]], [msgspec.convert(one["warning"], QualityWarning)])
        for name, figures in study.get("machine", {}).items():
            for run_id, figure in figures:
                store.add_figures(numbers[run_id], [msgspec.convert(figure, _KINDS[name], str_keys=True)])
        for distance in study.get("distances", ()):
            store.add_distance(msgspec.convert(distance, rows.DraftDistance))


def _trial(study: dict[str, Any], place: int, one: dict[str, Any]) -> Trial:
    """A trial with its tokens and rounds."""
    fields = one["trial"] if "reason" in one["trial"] or "valid" not in one["trial"] else _with_status(one["trial"])
    columns = []
    for name in _FIELDS:
        column = study["rounds"][name][place]
        is_time = column and name.endswith("_ns")
        columns.append([column[0] + value for value in column[1:]] if is_time else column)
    rounds = [dict(zip(_FIELDS, row, strict=True)) for row in zip(*columns, strict=True)]
    return msgspec.convert({**fields, "tokens": study["outputs"].get(one["output"], ()), "rounds": rounds}, Trial)


def _with_status(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial of schema 1 as it is told now."""
    why, error = trial.get("invalid_reason"), trial.get("error")
    disturbed = trial.get("disturbed") or str(why).startswith("disturbed")  # before there was the field
    diverged = (trial.get("losslessness") or {}).get("verdict") == "diverged"
    if trial["status"] == "failed":
        status, reason = Status.FAILED, error or "no reason given"
    elif disturbed and not (diverged or trial.get("failed_native_calls")):
        status, reason = Status.HOT if trial["valid"] else Status.DISTURBED, why or "passes were slower than before"
    elif trial["valid"] and not disturbed:
        status, reason = Status.VALID, why
    else:
        status, reason = Status.INVALID, why or "no reason given"
    return trial | {"status": status, "reason": reason}

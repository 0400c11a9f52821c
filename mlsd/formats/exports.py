"""Trials for other programs: CSV with a line a trial, JSON of the whole study, and llama-bench's fields."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from mlsd.errors import InputError, choose
from mlsd.folders import replacing
from mlsd.formats import llama_bench
from mlsd.formats.tables import TRIALS, trial_rows
from mlsd.methods import is_control
from mlsd.store import schema
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad, TrialFilter
from mlsd.store.store import ALL, Store

# A spreadsheet takes a cell that starts with one of these for a formula (OWASP, "CSV Injection").
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def export(store: Store, kind: str, out: BinaryIO, chosen: TrialFilter = ALL) -> int:
    """Write the chosen trials to `out` and return how many rows or objects that were.

    Raises: InputError for a format that is unknown.
    """
    if kind not in EXPORTS:
        raise InputError(f"There is no export format {kind!r}.", hint=choose(kind, EXPORTS))
    return EXPORTS[kind](store, out, chosen)


def write_file(path: Path, write: Callable[[BinaryIO], int]) -> int:
    """Let `write` fill a file that appears whole or not at all, and answer as it does. Raises: InputError."""
    with replacing(path, "Give a writable file with --output.") as part, part.open("wb") as out:
        return write(out)


def _write_csv(store: Store, out: BinaryIO, chosen: TrialFilter) -> int:
    """A header and a line a trial, UTF-8 with empty cells for None; safe to open in a spreadsheet."""
    stream = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(column.name for column in TRIALS)
    count = 0
    for count, row in enumerate(trial_rows(store, chosen), 1):  # noqa: B007 - read behind the loop
        writer.writerow(guarded(cell) for cell in row.values())
    stream.detach()
    return count


def guarded(cell: Any) -> Any:
    """A cell, with an apostrophe before a text that a spreadsheet would run as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell


def _write_json(store: Store, out: BinaryIO, chosen: TrialFilter) -> int:
    """The whole study, streamed: runs, models, cases, trials, warnings, what else was stored."""
    count, cases = 0, store.cases()

    def trials() -> Iterator[Any]:
        nonlocal count
        for stored in store.trials(chosen):
            count += 1
            fields = msgspec.to_builtins(stored.trial)
            fields["control"] = is_control(cases[stored.trial.case_id].drafter.name)
            yield {"id": stored.id, "run_id": stored.run_id, "environment_key": stored.environment_key, **fields}

    encode = msgspec.json.encode
    out.write(b'{"schema_version": %d' % schema.VERSION)
    out.write(b',\n"models": ' + encode(store.models()) + b',\n"cases": ' + encode(cases))
    lists: dict[str, Iterator[Any]] = {
        "runs": iter(store.runs()),
        "trials": trials(),
        "warnings": iter(store.warnings()),
        "calibration": _with_run(store.figures(CalibrationPoint)),
        "coverage": _with_run(store.figures(Coverage)),
        "expert_load": _with_run(store.figures(ExpertLoad)),
    }
    for name, items in lists.items():
        out.write(b',\n"%s": [' % name.encode())
        for number, item in enumerate(items):
            out.write((b",\n" if number else b"\n") + encode(item))
        out.write(b"]")
    out.write(b"}\n")
    return count


def _with_run(rows: Iterator[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
    return ({"run_id": run_id, **msgspec.to_builtins(record, str_keys=True)} for run_id, record in rows)


EXPORTS = {"csv": _write_csv, "json": _write_json, "llama-bench": llama_bench.write}

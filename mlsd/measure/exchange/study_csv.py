"""The mixture-of-experts study's table of runs, written and read: one line a trial, and what says how it was counted.

Acceptance is a fraction; draft_model is the word none for plain decoding. A trial that is not valid has the status
"invalid", one of a drafter that nobody can use "control", so that a script which keeps the "ok" lines takes neither.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from mlsd.errors import TableError
from mlsd.measure.exchange.delimited import guarded, write_csv
from mlsd.measure.exchange.pasted import text_of
from mlsd.measure.exchange.printed import in_percent, is_blank, parse_printed
from mlsd.measure.exchange.tables import dict_rows
from mlsd.measure.store.rows import ImportedRow, TrialFilter
from mlsd.measure.store.sessions import sessions
from mlsd.measure.store.store import Store
from mlsd.records import CONTROLS, NO_DRAFTER
from mlsd.trials.sums import decode_tok_s, share
from mlsd.units import NS_PER_MS

COLUMNS = (
    "job_id", "timestamp", "machine", "chip", "target_model", "draft_model", "draft_len", "n_prompt", "n_predict",
    "repeat", "prompt_key", "tokens_per_sec", "prompt_eval_ms", "eval_ms_per_token", "draft_acceptance_rate",
    "speedup_vs_baseline", "raw_log", "status", "acceptance_of", "mgl", "rounds",
)  # fmt: skip
REQUIRED = ("target_model", "draft_model", "tokens_per_sec")
RATE = "draft_acceptance_rate"
NOT_UNDERSTOOD = "not understood: "  # how the status of a row begins that could not be read


# --- writing ----------------------------------------------------------------------------------------------------


def write(store: Store, out: BinaryIO, chosen: TrialFilter) -> int:
    """Write the header and a line a trial; returns how many."""
    return write_csv(out, COLUMNS, _lines(store, chosen))


def _lines(store: Store, chosen: TrialFilter) -> Iterator[list[Any]]:
    environments = {run.id: run.environment for run in store.runs()}
    cases = store.cases()
    ratios = _ratios(store)
    for row in dict_rows(store.summary(chosen)):
        case, environment = cases[row["case_id"]], environments[row["run_id"]]
        speed = decode_tok_s(row["n_tokens"], row["decode_ns"])
        texts = {
            "job_id": f"{row['suite']}-{row['trial_id']}",
            "timestamp": row["started_at"],
            "machine": environment.host,
            "chip": environment.chip,
            "target_model": row["target"],
            "draft_model": row["draft"] or row["drafter"],
            "prompt_key": row["prompt"],
            "acceptance_of": "proposed" if row["arm"] == "sd" else None,
            "status": _status(row),
        }
        numbers = {
            "draft_len": row["gamma"],
            "n_prompt": row["n_prompt"] if row["n_prompt"] is not None else case.prompt.n_tokens,
            "n_predict": row["n_predict"],
            "repeat": row["repeat"],
            "tokens_per_sec": speed,
            "prompt_eval_ms": None if row["prefill_ns"] is None else row["prefill_ns"] / NS_PER_MS,
            "eval_ms_per_token": None if speed is None else 1000 / speed,
            "draft_acceptance_rate": share(row["accepted"], row["proposed"]) if row["arm"] == "sd" else None,
            "speedup_vs_baseline": ratios.get(row["trial_id"]),
            "mgl": share(row["committed"], row["rounds"]) if row["arm"] == "sd" else None,
            "rounds": row["rounds"] if row["arm"] == "sd" else None,
        }
        cells = {name: guarded(text) for name, text in texts.items()} | numbers
        yield [cells.get(column) for column in COLUMNS]


def _status(row: Mapping[str, Any]) -> str:
    if row["status"] == "ok":
        return "invalid" if not row["valid"] else "control" if row["drafter"] in CONTROLS else "ok"
    return str(row["status"])


def _ratios(store: Store) -> dict[int, float]:
    """By trial its speed over that of the plain trial of its block."""
    arms = (one for session in sessions(store) for one in session.results() if one.n_valid)
    return {pair.own.id: pair.ratio for one in arms for pair in one.pairs if pair.own.id is not None}


# --- reading ----------------------------------------------------------------------------------------------------


def read(data: bytes, source: str, sha256: str) -> list[ImportedRow]:
    """The rows of a table in this layout; columns it does not know are kept in `raw`.

    Cells are read as people write them (`parse_printed`). A row with a cell that is not understood has that as its
    status. Raises: TableError where the file is no table of this layout, or none of its rows is understood.
    """
    reader = csv.DictReader(io.StringIO(text_of(data, source), newline=""), strict=True)
    lines: list[tuple[int, dict[Any, Any]]] = []
    try:
        _check_header(source, list(reader.fieldnames or []))
        lines += [(reader.line_num, record) for record in reader]
    except csv.Error as error:
        raise TableError(f"{source}, line {reader.line_num}: not readable as CSV: {error}.") from error
    if not lines:
        raise TableError(f"{source} holds no row.", hint="Below the header, give one line for each run.")
    percent = in_percent(record.get(RATE) or "" for _, record in lines)
    rows = []
    for number, (line, record) in enumerate(lines, 1):
        try:
            fields = _fields(line, record, percent)
        except ValueError as error:
            fields = {"status": f"{NOT_UNDERSTOOD}{error}"}
        fields["raw"] = {str(column): value or "" for column, value in record.items() if column is not None}
        rows.append(ImportedRow(source=source, source_sha256=sha256, format="study-csv", row=number, **fields))
    if all(row.status.startswith(NOT_UNDERSTOOD) for row in rows):
        reason = rows[0].status.removeprefix(NOT_UNDERSTOOD)
        raise TableError(f"{source}, {reason}.", hint="No row of the table could be read.")
    return rows


def _fields(line: int, record: Mapping[Any, Any], percent: bool) -> dict[str, Any]:
    """The fields of a row by its cells. Raises: ValueError naming line and column."""

    def cell(column: str, kind: Callable[[str], Any]) -> Any:
        text = (record.get(column) or "").strip()
        if not text or (kind is not str and is_blank(text)):
            return None
        try:
            return kind(text)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"line {line}, column {column}: {error}") from error

    if None in record:
        raise ValueError(f"line {line}: {len(record[None])} more cells than columns")
    draft = cell("draft_model", str)
    if draft is None:
        raise ValueError(f"line {line}, column draft_model: the cell is empty; write none for plain decoding")
    found = {field: cell(column, kind) for field, (column, kind) in _CELLS.items()}
    found["status"] = found["status"] or "ok"
    if draft.lower() in (NO_DRAFTER, "-", "n/a"):
        return found | {"gamma": 0}
    rate = cell(RATE, _percentage if percent else _fraction)
    return found | {"draft_model": draft, "gamma": cell("draft_len", _count), "acceptance_rate": rate}


def _check_header(source: str, header: list[str]) -> None:
    missing = [column for column in REQUIRED if column not in header]
    if missing:
        raise TableError(
            f"{source}, line 1: column {', '.join(missing)} is missing.", hint=f"The layout is: {', '.join(COLUMNS)}."
        )
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise TableError(f"{source}, line 1: column {', '.join(twice)} appears twice.")


def _positive(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise ValueError(f"{text!r} is not above 0")
    return value


def _fraction(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not a fraction between 0 and 1")
    return value


def _percentage(text: str) -> float:
    return _fraction(text if "%" in text else f"{text} %")


def _count(text: str) -> int:
    value = _number(text)
    if value < 0 or value != int(value):
        raise ValueError(f"{text!r} is not a count")
    return int(value)


def _number(text: str) -> float:
    try:
        return parse_printed(text).value
    except ValueError as error:
        raise ValueError(f"{text!r} is not a {'finite ' if 'finite' in str(error) else ''}number") from None


_CELLS: dict[str, tuple[str, Callable[[str], Any]]] = {  # by field of an ImportedRow: its column, and how it is read
    "status": ("status", str),
    "job_id": ("job_id", str),
    "measured_at": ("timestamp", str),
    "machine": ("machine", str),
    "chip": ("chip", str),
    "target_model": ("target_model", str),
    "n_prompt": ("n_prompt", _count),
    "n_predict": ("n_predict", _count),
    "repeat": ("repeat", _count),
    "prompt_key": ("prompt_key", str),
    "decode_tok_s": ("tokens_per_sec", _positive),
    "prefill_ns": ("prompt_eval_ms", lambda text: round(_positive(text) * NS_PER_MS)),
    "decode_ns_per_token": ("eval_ms_per_token", lambda text: _positive(text) * NS_PER_MS),
    "speedup": ("speedup_vs_baseline", _positive),
}

"""Audit rows from a CSV in the column layout of the mixture-of-experts study, and what is known beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.printed import Printed, parse_printed
from mlsd.analysis.audit.rows import AuditContext, AuditRow
from mlsd.analysis.audit.rules import whole_counts
from mlsd.errors import TableError
from mlsd.records import DRAFT_MODEL, NO_DRAFTER

T = TypeVar("T")

COLUMNS = (
    "job_id",
    "timestamp",
    "machine",
    "chip",
    "target_model",
    "draft_model",
    "draft_len",
    "n_prompt",
    "n_predict",
    "repeat",
    "prompt_key",
    "tokens_per_sec",
    "prompt_eval_ms",
    "eval_ms_per_token",
    "draft_acceptance_rate",
    "speedup_vs_baseline",
    "raw_log",
    "status",
)
REQUIRED = ("target_model", "draft_model", "draft_len", "n_predict", "tokens_per_sec", "draft_acceptance_rate")
_FULL_DRAFTS_SHARE = 0.8  # of the rows whose counts fit full-length drafts, before the table is taken to have them
_FULL_DRAFTS_ROWS = 5


def read_csv(path: Path, *, full_drafts: bool | None = None, peak_gb_s: float | None = None) -> AuditContext:
    """Read a table of results for the audit.

    `full_drafts`: whether every round proposes gamma tokens; None decides it from the counts. `peak_gb_s`: the memory's
    peak in GB/s; None takes it from a published study of the same chip. Raises TableError naming column and line.
    """
    text = _decode(path)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        records = [(reader.line_num, record) for record in reader]
    except csv.Error as error:
        raise TableError(f"{path}, line {reader.line_num}: not readable as CSV: {error}.") from error
    header = list(reader.fieldnames or [])
    _check_header(path, header)
    ok = [(line, record) for line, record in records if (record.get("status") or "ok") == "ok"]
    if not ok:
        raise TableError(f"{path} holds no row with status ok.", hint="Give a table with at least one finished run.")
    rows = [_row(path, line, record) for line, record in ok]
    full = _looks_full(rows) if full_drafts is None else full_drafts
    notes = [f"{len(records) - len(ok)} rows are not ok and were left out."] if len(ok) < len(records) else []
    said = "Full-length drafts" if full else "Drafts of unknown length"
    notes.append(f"{said}: {'decided from the counts' if full_drafts is None else 'as told'}.")
    logs = [record["raw_log"] for _, record in ok if record.get("raw_log")]
    lost = sum(not (path.parent / str(log)).exists() for log in logs)
    if lost:
        notes.append(f"{lost} of {len(logs)} raw logs that the table names are not there to be checked.")
    rows = [msgspec.structs.replace(row, fixed_length=full and row.speculative) for row in rows]
    chips = {record.get("chip") or "" for _, record in ok}
    return _with_knowledge(tuple(rows), chips, peak_gb_s, tuple(notes))


def _decode(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror}.", hint="Give the path of a CSV file.") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TableError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8.", hint="Save the table as UTF-8."
        ) from error
    if not text.strip():
        raise TableError(f"{path} is empty.", hint=f"The first line names the columns: {', '.join(COLUMNS)}.")
    return text.replace("\0", "�")


def _check_header(path: Path, header: list[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise TableError(f"{path}, line 1: column {', '.join(twice)} appears twice.")
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        unknown = [name for name in header if name not in COLUMNS]
        found = f" Unknown columns there: {', '.join(unknown)}." if unknown else ""
        raise TableError(
            f"{path}, line 1: column {', '.join(missing)} is missing.{found}",
            hint=f"The layout is: {', '.join(COLUMNS)}.",
        )


def _row(path: Path, line: int, record: dict[str, str | None]) -> AuditRow:
    extra = record.get(None)  # type: ignore[call-overload]  # csv puts surplus cells there
    if extra:
        raise TableError(f"{path}, line {line}: {len(extra)} more cells than columns.")

    def cell(column: str, read: Callable[[str], T]) -> T | None:
        text = (record.get(column) or "").strip()
        if not text:
            return None
        try:
            return read(text)
        except ValueError as error:
            raise TableError(f"{path}, line {line}, column {column}: {error}.") from error

    def needed(column: str, read: Callable[[str], T]) -> T:
        value = cell(column, read)
        if value is None:
            raise TableError(f"{path}, line {line}, column {column}: the cell is empty.")
        return value

    draft = needed("draft_model", str)
    speculative = draft != "none"
    gamma = needed("draft_len", _count)
    if speculative and gamma < 1:
        raise TableError(f"{path}, line {line}, column draft_len: a draft of {gamma} tokens with draft model {draft}.")
    return AuditRow(
        table=path.name,
        label=cell("job_id", str) or f"line {line}",
        target=needed("target_model", str),
        drafter=DRAFT_MODEL if speculative else NO_DRAFTER,
        draft=draft if speculative else None,
        gamma=gamma if speculative else None,
        prompt=cell("prompt_key", str),
        n_prompt=cell("n_prompt", _count),
        n_predict=needed("n_predict", _count),
        repeat=cell("repeat", _count),
        tok_s=needed("tokens_per_sec", _positive),
        ms_per_token=cell("eval_ms_per_token", _positive),
        speedup=cell("speedup_vs_baseline", _positive),
        acceptance=needed("draft_acceptance_rate", _fraction) if speculative else None,
    )


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> Printed:
    number = parse_printed(text)
    if number.value <= 0:
        raise ValueError(f"{text!r} is not above zero")
    return number


def _fraction(text: str) -> Printed:
    number = parse_printed(text)
    if not 0.0 <= number.value <= 1.0:
        raise ValueError(f"{text!r} is not a fraction from 0 to 1")
    return number.at_most(1.0)


def _looks_full(rows: list[AuditRow]) -> bool:
    """Whether nearly all counts fit drafts of full length; too many to be chance."""
    speculative = {row.case: row for row in rows if row.speculative}
    found = [whole_counts(msgspec.structs.replace(row, fixed_length=True)) for row in speculative.values()]
    fits = [finding.verdict == "possible" for finding in found if finding is not None]
    return len(fits) >= _FULL_DRAFTS_ROWS and sum(fits) / len(fits) >= _FULL_DRAFTS_SHARE


def _with_knowledge(
    rows: tuple[AuditRow, ...], chips: set[str], peak_gb_s: float | None, notes: tuple[str, ...]
) -> AuditContext:
    """Add sizes and peak from a published study of the same chip and models, and draft speeds from the table itself."""
    own = AuditContext(rows=rows)
    known = {row.target for row in rows} | {row.draft for row in rows if row.draft}
    timed = {name: [r.tok_s.high for r in own.baselines(name) if r.tok_s is not None] for name in known}
    draft_ms = {name: 1e3 / max(values) for name, values in timed.items() if values}
    sizes: dict[str, float] = {}
    source = "as told"
    for name in published.names():
        study = published.load(name)
        if study.machine is None or chips != {study.machine.chip} or not known <= {model.id for model in study.models}:
            continue
        sizes = {m.id: m.pass_bytes for m in study.models if m.pass_bytes is not None}
        in_print = published.context(study).draft_token_ms
        draft_ms = in_print | published.draft_token_ms(study, own) | draft_ms
        peak_gb_s, source = peak_gb_s or study.machine.peak_gb_s, study.machine.source
        taken = "model sizes, peak bandwidth and speeds that the table lacks are taken from it"
        notes += (f"Chip and models are those of {study.title}: {taken}.",)
    return AuditContext(
        rows=rows,
        peak_gb_s=peak_gb_s,
        peak_source=source if peak_gb_s else "",
        pass_bytes=sizes,
        draft_token_ms=draft_ms,
        notes=notes,
    )

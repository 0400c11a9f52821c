"""CSV of trials or rounds, one line each; safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, BinaryIO

from mlsd.measure.exchange.tables import column_kind, trial_table
from mlsd.measure.store.rows import TrialFilter
from mlsd.measure.store.store import Store

# A spreadsheet takes a cell that starts with one of these for a formula (OWASP, "CSV Injection").
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write(store: Store, out: BinaryIO, chosen: TrialFilter) -> int:
    """Write a header and a line a trial; returns how many."""
    table = trial_table(store, chosen)
    text = [column_kind(column) == "text" for column in table.columns]
    rows = ([guarded(cell) if is_text else cell for cell, is_text in zip(row, text, strict=True)] for row in table.rows)
    return write_csv(out, table.columns, rows)


def write_rounds(store: Store, out: BinaryIO, chosen: TrialFilter) -> int:
    """Write a header and a line a round, all of them numbers; returns how many."""
    return write_csv(out, *store.rounds(chosen))


def guarded(cell: str | None) -> str | None:
    """A text cell with an apostrophe before what a spreadsheet would run as a formula."""
    return f"'{cell}" if cell is not None and cell.startswith(_FORMULA_STARTS) else cell


def write_csv(out: BinaryIO, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> int:
    """Write UTF-8 CSV, empty cells for None; returns how many rows."""
    stream = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    stream.detach()
    return count

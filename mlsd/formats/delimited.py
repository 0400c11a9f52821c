"""CSV of trials, one line each; safe to open in a spreadsheet."""

import csv
import io
from typing import BinaryIO

from mlsd.formats.tables import column_kind, trial_table
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store

# A spreadsheet takes a cell that starts with one of these for a formula (OWASP, "CSV Injection").
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write(store: Store, out: BinaryIO, chosen: TrialFilter) -> int:
    """Write a header and a line a trial, UTF-8 with empty cells for None; returns how many."""
    table = trial_table(store, chosen)
    is_text = [column_kind(column) == "text" for column in table.columns]
    stream = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    count = 0
    for row in table.rows:
        writer.writerow(guarded(cell) if text else cell for cell, text in zip(row, is_text, strict=True))
        count += 1
    stream.detach()
    return count


def guarded(cell: str | None) -> str | None:
    """A text cell with an apostrophe before what a spreadsheet would run as a formula."""
    return f"'{cell}" if cell is not None and cell.startswith(_FORMULA_STARTS) else cell

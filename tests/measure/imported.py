"""Rows of somebody else's table in a study database, as an mlsd that still imported such left them."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path

from mlsd.store import rowcodec
from mlsd.store.rows import ImportedRow
from mlsd.store.store import Store

# Ten rows of results/csv/runs.csv in AtomGradient/speculative-moe-research: baselines, suite B, suite F.
EXCERPT = Path(__file__).parent.parent / "analysis" / "data" / "study_runs_excerpt.csv"


def import_table(path: Path, table: Path = EXCERPT) -> list[ImportedRow]:
    """Put the rows of a table in the study's layout into the database at `path`, which is made where there is none."""
    Store.open(path).close()
    rows = []
    with table.open(encoding="utf-8", newline="") as file:
        for number, cells in enumerate(csv.DictReader(file), 1):
            drafted = cells["draft_model"] != "none"
            rows.append(
                ImportedRow(
                    source=table.name,
                    source_sha256="d" * 64,
                    format="study-csv",
                    row=number,
                    status=cells.get("status") or "ok",
                    target_model=cells["target_model"],
                    draft_model=cells["draft_model"] if drafted else None,
                    gamma=int(cells["draft_len"] or 0) if drafted else 0,
                    prompt_key=cells["prompt_key"],
                    decode_tok_s=float(cells["tokens_per_sec"]),
                    acceptance_rate=float(cells["draft_acceptance_rate"]) if drafted else None,
                    raw=dict(cells),
                )
            )
    values = [("", r.source, r.source_sha256, r.format, r.row, r.status, rowcodec.encode(r)) for r in rows]
    columns = "imported_at, source, source_sha256, format, row, status, record"
    connection = sqlite3.connect(path)
    with connection:
        connection.executemany(f"INSERT INTO imported ({columns}) VALUES (?,?,?,?,?,?,?)", values)
    connection.close()
    return rows

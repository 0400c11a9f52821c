"""The tables that compare drafting methods on tasks: speedup and MGL for each kind, and the time of a round."""

from __future__ import annotations

from collections.abc import Callable

from mlsd.analysis.results.distances import predictions
from mlsd.analysis.results.methods_table import MethodRow, TimingRow, methods_by_kind, timing
from mlsd.analysis.results.speedups import Speedup
from mlsd.analysis.study.methods_words import sentences
from mlsd.analysis.study.study import Study, attempt
from mlsd.measure.store.pass_shares import PassShares
from mlsd.planning.tasks import KINDS
from mlsd.report.render.table import Cell, Head, Table, Tone, head, interval, name, number, percent, text
from mlsd.report.tables.passes import pass_table, share_cell
from mlsd.stats import Interval

_RATIO = "speedups.speedups: geometric mean over blocks of SD / AR decode tok/s"
_PARTS = ("draft", "verify", "rollback", "sample", "other")


def reasons(study: Study) -> tuple[str, ...]:
    """Why each method pays or does not, in sentences. Raises: AnalysisError without tasks."""
    curves, _ = attempt(lambda: study.machine.curves)
    return sentences(timing(study.trials, study.stats, study.outcomes), curves or {}, study.source)


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
            _method_cell(row.method, row.overall.fell_back, timed=row.overall.timed),
            number(row.overall.gamma, 0),
            cell(row.overall),
            *(cell(row.by_kind[kind]) if kind in row.by_kind else text(None) for kind in KINDS),
        )
        for row in rows
    )
    return Table(
        id=id, title=title, heads=tuple(heads), rows=made, trace="methods_table.methods_by_kind", interactive=True
    )


def _method_cell(method: str, fell_back: str | None, *, timed: bool = True) -> Cell:
    """The method, with what its trials really measured where that is something else."""
    if not timed:
        return text(f"{method}, not timed", "doubt", "it drafted inside the target: its times are not the method's")
    if fell_back is not None:
        return text(f"{method}, not sync", "doubt", f"the draft kept its own memory: {fell_back}")
    return text(method)


def _speedup_cell(speedup: Speedup) -> Cell:
    ratio = speedup.ratio
    if not speedup.timed:
        return text("not timed", "quiet")
    if ratio is None:
        return text(None, note=speedup.invalid_reason or "no valid pair")
    tone: Tone = ""
    if ratio.low is not None and ratio.high is not None:
        tone = "good" if ratio.low > 1 else "bad" if ratio.high < 1 else "doubt"
    return interval(ratio, tone=tone)


def timing_table(study: Study) -> Table:
    """Mean time of a round by part, and what is known inside the parts."""
    heads = [name("target"), name("method"), head("gamma"), head("rounds"), head("ms a round", "sum of the parts")]
    heads += [head(f"{part}, ms", f"round records: {part}_ns / rounds") for part in _PARTS]
    heads += [head("MGL", "committed / rounds"), head("break-even MGL", "round / plain round of the same target")]
    heads += [name("of it, ms a round", "round_split.inside_parts: Trial.stats, and what is left of rollback")]
    heads += [head("LM head of a draft step", "mlsd breakdown: its share of a profiled pass, no speed")]
    heads += [head("rounds with a match"), head("look-up with match, ms"), head("without, ms")]
    rows = timing(study.trials, study.stats)
    return Table(
        id="methods-timing",
        title="Where the time of a round goes",
        heads=tuple(heads),
        rows=tuple(_timing_cells(row, study.machine.draft_step(study.cases[row.case_id])) for row in rows),
        trace="methods_table.timing",
        interactive=True,
    )


def _timing_cells(row: TimingRow, step: PassShares | None) -> tuple[Cell, ...]:
    inside = ", ".join(f"{part} {value:.2f}" for part, value in row.inside_ms.items())
    return (
        text(row.target),
        _method_cell(row.method, row.fell_back),
        number(row.gamma, 0),
        number(row.rounds, 0),
        number(sum(row.ms_per_round.values())),
        *(number(row.ms_per_round[part]) for part in _PARTS),
        number(row.mgl),
        number(row.break_even_mgl),
        text(inside or None),
        share_cell(step, "head"),
        percent(row.match_rate),
        number(row.match_ms, 3),
        number(row.no_match_ms, 3),
    )


def match_table(study: Study) -> Table:
    """Rounds with and without a proposal, for methods that look proposals up."""
    parts = ("round", "search", "tree", "look-up", *_PARTS)
    heads = [name("target"), name("method"), head("gamma"), name("rounds"), head("n")]
    heads += [head(f"{part}, ms", "round_split.round_kinds: means over these rounds") for part in parts]
    rows = [
        (
            text(row.target),
            _method_cell(row.method, row.fell_back),
            number(row.gamma, 0),
            text(label),
            number(kind.rounds, 0),
            *(number(kind.ms.get(part), 3) for part in parts),
        )
        for row in timing(study.trials, study.stats, study.outcomes)
        for label, kind in (("with a proposal", row.found), ("without", row.not_found))
        if kind is not None
    ]
    return Table(
        id="methods-match",
        title="Rounds with and without a proposal",
        heads=tuple(heads),
        rows=tuple(rows),
        trace="methods_table.timing",
        note="no method that looks proposals up was measured." if not rows else "",
    )


def distance_table(study: Study) -> Table:
    """What predicts acceptance without drafting, beside what was accepted."""
    heads = [name("target"), name("method"), head("gamma"), head("perplexity ratio", "draft / target on one text")]
    heads += [head("total variation", "mean over positions of half the sum of |p - q|"), head("same likeliest token")]
    heads += [head("acceptance", "accepted / proposed over valid trials")]
    rows = tuple(
        (
            text(row.target),
            text(row.method),
            number(row.gamma, 0),
            interval(
                Interval(
                    value=row.distance.ratio,
                    low=row.distance.ratio_low,
                    high=row.distance.ratio_high,
                    n=row.distance.n_tokens,
                )
            ),
            number(row.distance.total_variation, 3, note=f"standard error {row.distance.total_variation_error:.3f}"),
            percent(row.distance.agreement),
            percent(row.acceptance_rate),
        )
        for row in predictions(study.trials, study.distances)
    )
    return Table(
        id="methods-distance",
        title="What predicts acceptance: the drafting model against its target",
        heads=tuple(heads),
        rows=rows,
        trace="predictors.predictions",
    )


METHOD_TABLES = [speedup_table, mgl_table, distance_table, timing_table, match_table, pass_table]

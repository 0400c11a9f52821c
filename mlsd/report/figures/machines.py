"""Figures that set the machines of a database side by side."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from mlsd.analysis.study.machines import MachineRow, machine_rows
from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry
from mlsd.stats import Interval, grouped


def over_bandwidth(study: Study) -> Figure:
    """Plain throughput and the best setting's speedup over the published bandwidth of each machine."""
    rows = machine_rows(study)
    return _over(rows, [row.peak_gb_s for row in rows], "published bandwidth, GB/s")


def over_active_parameters(study: Study) -> Figure:
    """Plain throughput and the best setting's speedup over the active parameters of each target."""
    rows = machine_rows(study)
    active = [None if row.parameters_active is None else row.parameters_active / 1e9 for row in rows]
    return _over(rows, active, "active parameters, 10^9")


MACHINES_FIGURES = (
    FigureEntry("over-bandwidth", "Machines over bandwidth", over_bandwidth),
    FigureEntry("over-parameters", "Machines over active parameters", over_active_parameters),
)


def _over(rows: Sequence[MachineRow], xs: Sequence[float | None], label: str) -> Figure:
    known = [(row, x) for row, x in zip(rows, xs, strict=True) if x is not None]
    if not known:
        raise AnalysisError(f"Of no machine and target the {label.partition(',')[0]} is known.")
    figure, parts = plot.panels(grouped(known, lambda one: one[0].machine), 2)
    for (left, right), shown in parts:
        for index, (machine, own) in enumerate(shown):
            plain = [None if row.plain_tok_s is None else Interval(value=row.plain_tok_s) for row, _ in own]
            best = [row.best.ratio if row.best is not None else None for row, _ in own]
            for ax, found in ((left, plain), (right, best)):
                look = plot.look(index, linestyle="none", label=machine, capsize=2.5)
                look |= plot.dodged(ax, index, len(shown))
                plot.intervals(ax, [x for _, x in own], found, **look)
        right.axhline(1.0, color=plot.INK, linewidth=0.9, linestyle="--")
        left.set(xlabel=label, ylabel="plain tok/s", ylim=(0, None))
        right.set(xlabel=label, ylabel="speedup of the best setting", ylim=(0, None))
        plot.legend((left, right))
    return figure

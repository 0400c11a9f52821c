"""Figures that set the machines of a database side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mlsd.analysis.study.machines import MachineRow, machine_rows
from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry
from mlsd.stats import Interval


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
    figure, (left, right) = plot.canvas(columns=2)
    machines = list(dict.fromkeys(row.machine for row, _ in known))
    for index, machine in enumerate(machines):
        own = [(row, x) for row, x in known if row.machine == machine]
        _points(
            left,
            [(x, None if row.plain_tok_s is None else Interval(value=row.plain_tok_s)) for row, x in own],
            index,
            machine,
        )
        _points(right, [(x, row.best.ratio if row.best is not None else None) for row, x in own], index, machine)
    right.axhline(1.0, color=plot.INK, linewidth=0.9, linestyle="--")
    left.set(xlabel=label, ylabel="plain tok/s", ylim=(0, None))
    right.set(xlabel=label, ylabel="speedup of the best setting", ylim=(0, None))
    plot.legend(figure, (left, right))
    return figure


def _points(ax: Axes, points: Sequence[tuple[float, Interval | None]], index: int, label: str) -> None:
    look: dict[str, Any] = {"color": plot.color(index), "marker": plot.marker(index), "linestyle": "none"}
    plot.intervals(ax, [x for x, _ in points], [found for _, found in points], label=label, capsize=2.5, **look)

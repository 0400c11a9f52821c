"""Figures of what happens inside rounds and passes. One function a figure; each reads a Study.

A function raises AnalysisError with what is missing instead of drawing nothing.
"""

import math
import statistics
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.measure.parent.checks import Points, drift_of, plain_points
from mlsd.report.figures import draw
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry

_MOST_PAIRS = 9  # targets with a draft in one figure


def baseline_drift(study: Study) -> Figure:
    """Each AR trial, and each pass timed between blocks, relative to the mean of its kind; and the trends of both."""
    series = {"a plain trial": centred(plain_points(one.trial for one in study.judged))}
    series |= {f"a pass over {width}": centred(points) for width, points in study.anchors.items()}
    series = {name: points for name, points in series.items() if sum(map(len, points.values())) >= 3}
    if not series:
        raise AnalysisError("Fewer than three plain trials of repeated cases: drift cannot be seen.")
    begin = min(t for points in series.values() for case in points.values() for t, _ in case)
    figure, (ax,) = plot.canvas(2.8)
    for place, (name, points) in enumerate(series.items()):
        flat = [(t - begin, math.exp(y)) for case in points.values() for t, y in case]
        color = plot.color(2 * place)
        look: dict[str, Any] = {"marker": "o", "markersize": 3.5, "alpha": 0.7, "color": color}
        plot.scatter(ax, [t / 60 for t, _ in flat], [100 * (v - 1) for _, v in flat], name, **look)
        trend = drift_of(points)
        if trend is None:
            continue
        first, middle = min(t for t, _ in flat) / 60, sum(t for t, _ in flat) / len(flat) / 60
        minutes = np.array([first, first + trend.span_s / 60])
        word = "changed" if trend.decided else "not decided yet:"
        own = f"{name}: {word} {100 * trend.change:+.1f} % over the run"
        for change, label in ((trend.change, own), (trend.low, ""), (trend.high, "")):
            slope = math.log1p(change) / max(trend.span_s / 60, 1e-9)
            line: dict[str, Any] = {
                "color": plot.color(2 * place + 1),
                "linewidth": 1.6 if label else 0.8,
                "linestyle": "-" if label else "--",
            }
            ax.plot(minutes, 100 * np.expm1(slope * (minutes - middle)), label=label or "95 % interval", **line)
    ax.axhline(0, color=plot.INK, linewidth=0.9, linestyle=":")
    ax.set(xlabel="minutes since the first of them", ylabel="speed against\nthe mean of its kind, %")
    plot.legend([ax])
    return figure


def centred(points: Points) -> Points:
    """Logs of speeds over the geometric mean of each case that was measured more than once."""
    middles = {case: statistics.fmean(y for _, y in pairs) for case, pairs in points.items() if len(pairs) > 1}
    return {case: [(t, y - middle) for t, y in points[case]] for case, middle in middles.items()}


def equation_curves(study: Study) -> Figure:
    """The study's equations with times and acceptance of these rounds, beside the measured speedup (95 %)."""
    found = study.equations
    own = found[found["inputs"] == "rounds"]
    pairs = list(own.groupby(["suite", "target", "draft"], sort=False))
    groups = pairs[:_MOST_PAIRS]
    if not groups:
        raise AnalysisError("No valid trial of a draft model.", hint="Measure some: mlsd run B D.")
    columns = min(3, len(groups))
    figure, axes = plot.canvas(2.6 * -(-len(groups) // columns) + 0.5, columns, rows=-(-len(groups) // columns))
    plot.left_out(figure, len(pairs) - len(groups), "pairs of models")
    for ax, ((suite, target, draft), frame) in zip(axes, groups, strict=False):
        draw.equations(frame, ax)
        ax.set_title(f"{suite}: {target}\n+ {draft}", fontsize=8)
        ax.set_ylim(0, 1.3 * float(frame[["speedup", "eq1", "eq2", "corrected"]].max().max()))
    for ax in axes[len(groups) :]:
        ax.set_visible(False)
    plot.legend(axes[: len(groups)], 4)
    return figure


def residuals(study: Study) -> Figure:
    """What the used models miss of settings that they have not seen: measured less predicted, in % of predicted."""
    speedups = [(one.pair, one.chosen, one.held_out_gamma) for one in study.pair_fits]
    times = [(one.target, one.chosen, one.held_out) for one in study.curve_fits]
    fits = [
        [(label, next(one for one in errors if one.model == used)) for label, used, errors in own if used is not None]
        for own in (speedups, times)
    ]
    if not any(fits):
        raise AnalysisError("No fit has settings that it has not seen.", hint="Measure three gammas: mlsd run B D.")
    figure, axes = plot.canvas(3.0, 2)
    most = len(plot.COLORS)
    plot.left_out(figure, sum(max(0, len(own) - most) for own in fits), "fits")
    for ax, own, predicted in zip(axes, fits, ("predicted speedup", "predicted T(k), ms"), strict=True):
        for index, (label, found) in enumerate(own[:most]):
            off = [100 * (seen / told - 1) for seen, told in zip(found.observed, found.predicted, strict=True)]
            look = plot.look(index, markersize=4, alpha=0.7)
            plot.scatter(ax, found.predicted, off, f"{label}: {found.model}", **look)
        ax.axhline(0, color=plot.INK, linewidth=0.9, linestyle=":")
        ax.set(xlabel=predicted)
        if own:
            ax.set_xscale("log")
            plot.plain_ticks(ax.xaxis)
    axes[0].set(ylabel="measured less predicted, %")
    plot.legend(axes)
    return figure


ROUND_FIGURES = (
    FigureEntry("equations", "Equations 1 and 2 with measured inputs", equation_curves),
    FigureEntry("residuals", "What the fits miss", residuals),
    FigureEntry("drift", "Drift over the run", baseline_drift),
)

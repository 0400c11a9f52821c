"""Figures of the machine: what passes cost, which experts they read, what the memory gives. Values in, figure out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mlsd.analysis import frames
from mlsd.analysis.compare.sessions import Comparison
from mlsd.analysis.experts.coverage import Mixture
from mlsd.analysis.fits.calibration import TargetCurve
from mlsd.errors import AnalysisError
from mlsd.hardware.metal_kernels import metal_steps
from mlsd.report.figures import draw
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry

if TYPE_CHECKING:
    import pandas as pd

_WIDE = 30  # times that span more than this factor need a logarithmic axis
_MOST_MIXTURES = 4  # of one figure


def pass_curves(curves: Mapping[str, TargetCurve]) -> Figure:
    """T(k) of every calibrated model with intervals and kernel steps (left), and its target efficiency (right)."""
    if not curves:
        raise AnalysisError("No pass was timed.", hint="Measure T(k) with `mlsd calibrate MODEL`.")
    times = [p.ms.value for curve in curves.values() for p in curve.passes]
    figure, parts = plot.panels(curves, 2)
    for (left, right), own in parts:
        frame = frames.of_passes({name: curve.passes for name, curve in own})
        draw.passes(frame, left)
        draw.efficiency(frame, right)
        for i, (_, curve) in enumerate(own):
            for edge in curve.steps.edges if curve.steps is not None else ():
                left.axvline(edge - 0.5, color=plot.color(i), linewidth=0.9, linestyle=":")
        left.set(title="One target pass (dotted: kernel step)")
        right.set(title="Target efficiency")
        if max(times) > _WIDE * min(times):
            left.set_yscale("log")
            plot.plain_ticks(left.yaxis)
        else:
            left.set_ylim(bottom=0)
        plot.legend((left, right))
    return figure


def build_curves(found: Comparison) -> Figure:
    """T(k) of both sides of a comparison (left), and B over A with its interval (right); dotted: Metal's own steps."""
    timed = {f.measure.name[2:-1]: f for f in found.findings if f.measure.name.startswith("T(")}
    known = [(int(k), f.a, f.b, f.change) for k, f in timed.items() if k.isdigit() and f.a and f.b]
    if not known:
        raise AnalysisError("No pass was timed on both sides.", hint="`mlsd compare` times the widths of --rows.")
    known.sort(key=lambda timing: timing[0])
    rows = [k for k, *_ in known]
    figure, (left, right) = plot.canvas(columns=2)
    for i, (side, times) in enumerate(((found.a, [a for _, a, *_ in known]), (found.b, [b for _, _, b, _ in known]))):
        label = f"{'AB'[i]}: {side.build}, {side.environment.llama_cpp_build}"
        left.plot(rows, times, **plot.look(i, markersize=3.5, label=label))
        steps = metal_steps(side.environment.llama_cpp_build)
        for step in steps.rows if steps is not None and side.environment.backend == "Metal" else ():
            left.axvline(step - 0.5, color=plot.color(i), linewidth=0.8, linestyle=":")
    changes = [(k, change) for k, *_, change in known if change is not None]
    ks, ratios = [k for k, _ in changes], [change for _, change in changes]
    right.plot(ks, [one.value for one in ratios], **plot.look(1, markersize=3.5, label="B / A, 99.5 % in all"))
    plot.faint_intervals(right, ks, ratios, plot.color(1))
    right.axhline(1.0, color=plot.INK, linewidth=0.8, linestyle="--")
    left.set(xlabel="k, rows of the pass", ylabel="T(k), ms", ylim=(0, None), title="One target pass")
    right.set(xlabel="k, rows of the pass", ylabel="T(k) of B / of A", title="Below 1: B is faster")
    right.set_ylim(0, 1.25 * max(1.0, *(change.value for _, change in changes)) if changes else None)
    plot.legend((left, right))
    return figure


def expert_shares(mixtures: Sequence[Mixture]) -> Figure:
    """Distinct experts of a layer in k tokens, counted and by both theories."""
    shown = mixtures[:_MOST_MIXTURES]
    columns, rows = min(2, len(shown)), -(-len(shown) // 2)
    figure, axes = plot.canvas(2.9 * rows + 0.7, columns, rows=rows)
    plot.left_out(figure, len(mixtures) - len(shown), "mixtures")
    for ax, found in zip(axes, shown, strict=False):
        table = found.coverage
        draw.experts(frames.of_mixtures([found]), ax)
        ax.set(title=f"{found.name}: {table.n_used} of {table.n_experts} experts, r = {table.correlation:.2f}")
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    plot.legend(axes[: len(shown)], 3)
    return figure


def roofline(bandwidth: pd.DataFrame) -> Figure:
    """Every target at every k under the roofs of memory and arithmetic, and where an M2 Ultra's roofs lie."""
    return _of_passes(bandwidth, "intensity", draw.roofline, 3.8, 1)


def amortization(bandwidth: pd.DataFrame) -> Figure:
    """What a position of a wider pass costs of a plain one in time and in bytes; the study says 1/k."""
    return _of_passes(bandwidth, "time_a_token", draw.amortization, 3.4, 2)


def _of_passes(
    frame: pd.DataFrame, column: str, draw_on: Callable[..., Axes], height_in: float, legend_columns: int
) -> Figure:
    if not frame[column].notna().any():
        raise AnalysisError("No pass of known bytes was timed.", hint="Measure T(k) with `mlsd calibrate MODEL`.")
    figure, axes = plot.canvas(height_in)
    draw_on(frame, *axes)
    plot.legend(axes, legend_columns)
    return figure


COST_FIGURES = (
    FigureEntry("machine-passes", "T(k) of calibrated models", pass_curves, lambda study: study.machine.curves),
    FigureEntry("machine-roofline", "Roofline (section 5.2)", roofline, lambda study: study.bandwidth),
    FigureEntry("machine-amortization", "Measured amortization", amortization, lambda study: study.bandwidth),
)
EXPERT_FIGURE = FigureEntry("expert-coverage", "Expert coverage", expert_shares, lambda study: study.machine.mixtures)

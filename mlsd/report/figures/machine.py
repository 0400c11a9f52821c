"""Figures of the machine: what passes cost, which experts they read, what the memory gives. Values in, figure out."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from mlsd.analysis import frames
from mlsd.analysis.compare.sessions import Comparison
from mlsd.analysis.experts.coverage import Mixture
from mlsd.analysis.fits.calibration import TargetCurve
from mlsd.columns import column, columns
from mlsd.errors import AnalysisError
from mlsd.hardware.metal_kernels import metal_steps
from mlsd.report.figures import draw
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry

_WIDE = 30  # times that span more than this factor need a logarithmic axis


def pass_curves(curves: Mapping[str, TargetCurve]) -> Figure:
    """T(k) of every calibrated model with intervals and kernel steps (left), and its target efficiency (right)."""
    if not curves:
        raise AnalysisError("No pass was timed.", hint="Measure T(k) with `mlsd calibrate MODEL`.")
    times = [p.ms.value for curve in curves.values() for p in curve.passes]
    figure, parts = plot.panels(curves, 2)
    for (left, right), labelled in parts:
        frame = frames.of_passes({name: curve.passes for name, curve in labelled})
        draw.passes(frame, left)
        draw.efficiency(frame, right)
        for i, (_, curve) in enumerate(labelled):
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


def build_curves(comparison: Comparison) -> Figure:
    """T(k) of both sides of a comparison (left), and B over A with its interval (right); dotted: Metal's own steps."""
    timed = {f.measure.name[2:-1]: f for f in comparison.findings if f.measure.name.startswith("T(")}
    timings = [(int(k), f) for k, f in timed.items() if k.isdigit() and f.a and f.b]
    if not timings:
        raise AnalysisError("No pass was timed on both sides.", hint="`mlsd compare` times the widths of --rows.")
    frame = frames.frame_of(timings, (*columns("k:n=0; a:3=1.a; b:3=1.b"), column("change", "[3]", "", "1.change")))
    frame = frame.sort_values("k")
    figure, (left, right) = plot.canvas(columns=2)
    for i, (name, side) in enumerate((("a", comparison.a), ("b", comparison.b))):
        label = f"{name.upper()}: {side.build}, {side.environment.llama_cpp_build}"
        draw.curve(left, frame, "k", name, label, plot.look(i, markersize=3.5))
        steps = metal_steps(side.environment.llama_cpp_build)
        for step in steps.rows if steps is not None and side.environment.backend == "Metal" else ():
            left.axvline(step - 0.5, color=plot.color(i), linewidth=0.8, linestyle=":")
    changed = frame[frame["change"].notna()]
    draw.curve(right, changed, "k", "change", "B / A, 99.5 % in all", plot.look(1, markersize=3.5))
    right.axhline(1.0, color=plot.INK, linewidth=0.8, linestyle="--")
    left.set(xlabel="k, rows of the pass", ylabel="T(k), ms", ylim=(0, None), title="One target pass")
    right.set(xlabel="k, rows of the pass", ylabel="T(k) of B / of A", title="Below 1: B is faster")
    right.set_ylim(0, 1.25 * max(1.0, changed["change"].max()) if len(changed) else None)
    plot.legend((left, right))
    return figure


def expert_shares(mixtures: Sequence[Mixture]) -> Figure:
    """Distinct experts of a layer in k tokens, counted and by both theories."""
    columns, rows = min(2, len(mixtures)), -(-len(mixtures) // 2)
    figure, axes = plot.canvas(2.9 * rows + 0.7, columns, rows=rows)
    for ax, mixture in zip(axes, mixtures, strict=False):
        table = mixture.coverage
        draw.experts(frames.of_mixtures([mixture]), ax)
        ax.set(title=f"{mixture.name}: {table.n_used} of {table.n_experts} experts, r = {table.correlation:.2f}")
    for ax in axes[len(mixtures) :]:
        ax.set_visible(False)
    plot.legend(axes[: len(mixtures)], 3)
    return figure


PASS_FIGURE = FigureEntry(
    "machine-passes", "T(k) of calibrated models", pass_curves, lambda study: study.machine.curves
)
EXPERT_FIGURE = FigureEntry("expert-coverage", "Expert coverage", expert_shares, lambda study: study.machine.mixtures)

"""Figures of the machine: what passes cost, which experts they read, what the memory gives. Values in, figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mlsd.analysis.compare.sessions import Comparison
from mlsd.analysis.experts.amortization import Mixture
from mlsd.analysis.fits.calibration import TargetCurve
from mlsd.analysis.study.machine_findings import Bandwidth, Machine
from mlsd.engine.llama.build.kernels import metal_steps
from mlsd.errors import AnalysisError
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry
from mlsd.stats import Interval

_WIDE = 30  # times that span more than this factor need a logarithmic axis
_MOST_MIXTURES = 4  # of one figure
_UNIFORM, _CORRELATED = "independent uniform (MoESD)", "one correlation r, fitted"
_BYTES, _CLAIM = "bytes, experts counted", "all weights a pass (study), 1/k"


def pass_curves(curves: Mapping[str, TargetCurve]) -> Figure:
    """T(k) of every calibrated model with intervals and kernel steps (left), and its target efficiency (right)."""
    if not curves:
        raise AnalysisError("No pass was timed.", hint="Measure T(k) with `mlsd calibrate MODEL`.")
    times = [p.ms.value for curve in curves.values() for p in curve.passes]
    most = max(1.05, *(e for curve in curves.values() for e in curve.efficiency.values()))
    figure, parts = plot.panels(curves, 2)
    for (left, right), own in parts:
        for i, (name, curve) in enumerate(own):
            rows = [p.rows for p in curve.passes]
            look = plot.look(i, markersize=3.5)
            _with_intervals(left, rows, [p.ms for p in curve.passes], name, look)
            for edge in curve.steps.edges if curve.steps is not None else ():
                left.axvline(edge - 0.5, color=plot.color(i), linewidth=0.9, linestyle=":")
            right.plot(rows, [curve.efficiency[k] for k in rows], label=name, **look)
        widest = max(p.rows for _, curve in own for p in curve.passes)
        k = np.arange(1, widest + 1)
        right.plot(k, 1 / k, color=plot.INK, linewidth=0.9, linestyle="--", label="saves nothing, 1/k")
        left.set(xlabel="k, rows of the pass", ylabel="T(k), ms", title="One target pass (dotted: kernel step)")
        right.set(xlabel="k, rows of the pass", ylabel="T(1) / T(k)", title="Target efficiency", ylim=(0, most))
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
    _with_intervals(right, ks, ratios, "B / A, 99.5 % in all", plot.look(1, markersize=3.5))
    right.axhline(1.0, color=plot.INK, linewidth=0.8, linestyle="--")
    left.set(xlabel="k, rows of the pass", ylabel="T(k), ms", ylim=(0, None), title="One target pass")
    right.set(xlabel="k, rows of the pass", ylabel="T(k) of B / of A", title="Below 1: B is faster")
    right.set_ylim(0, 1.25 * max(1.0, *(change.value for _, change in changes)) if changes else None)
    plot.legend((left, right))
    return figure


def expert_shares(mixtures: Sequence[Mixture]) -> Figure:
    """Distinct experts of a layer in k tokens against both theories (left); bytes and time of a token (right)."""
    shown = mixtures[:_MOST_MIXTURES]
    figure, axes = plot.canvas(2.9 * len(shown) + 0.7, 2, rows=len(shown))
    for left, right, found in zip(axes[::2], axes[1::2], shown, strict=True):
        _experts(left, found)
        _costs(right, found)
    plot.legend(axes, 3)
    return figure


def _experts(ax: Axes, found: Mixture) -> None:
    table = found.coverage
    k = [row.window for row in table.rows]
    lowest, highest = [r.lowest_layer for r in table.rows], [r.highest_layer for r in table.rows]
    ax.fill_between(k, lowest, highest, color=plot.color(0), alpha=0.15, linewidth=0, label="span of layers")
    look: dict[str, Any] = {"markersize": 4}
    ax.plot(k, [r.text for r in table.rows], color=plot.color(0), marker="o", label="counted, text", **look)
    drafted = [(r.window, r.drafted) for r in table.rows if r.drafted is not None]
    if drafted:
        ax.plot(*zip(*drafted, strict=True), color=plot.color(3), marker="D", label="counted, drafted", **look)
    ax.plot(k, [r.uniform for r in table.rows], color=plot.INK, linestyle="--", label=_UNIFORM)
    ax.plot(k, [r.correlated for r in table.rows], color=plot.color(2), linestyle="-.", label=_CORRELATED)
    title = f"{found.name}: {table.n_used} of {table.n_experts} experts, r = {table.correlation:.2f}"
    ax.set(xlabel="k, consecutive tokens", ylabel="distinct experts a layer", title=title)
    ax.set_ylim(0, 1.05 * max(r.uniform for r in table.rows))
    ax.xaxis.set_major_locator(plot.whole_ticks())


def _costs(ax: Axes, found: Mixture) -> None:
    k = [row.window for row in found.coverage.rows]
    known = [row for row in found.coverage.rows if row.amortization is not None]
    if known:
        own = [row.window for row in known]
        ax.plot(own, [r.amortization or 0 for r in known], color=plot.color(0), marker="o", markersize=4, label=_BYTES)
        ax.plot(own, [r.uniform_amortization or 0 for r in known], color=plot.INK, linestyle="--", label=_UNIFORM)
        correlated = [r.correlated_amortization or 0 for r in known]
        ax.plot(own, correlated, color=plot.color(2), linestyle="-.", label=_CORRELATED)
    ks = [at for at in k if at in found.time_a_token]
    times = [found.time_a_token[at] for at in ks]
    if times:
        _with_intervals(ax, ks, times, "time, measured", plot.look(1, markersize=4))
    ax.plot(k, [row.claimed for row in found.coverage.rows], color=plot.color(4), linestyle=":", label=_CLAIM)
    ax.axhline(1.0, color=plot.INK, linewidth=0.9)
    tallest = max((time.value for time in times), default=1.0)
    ax.set(
        xlabel="k, tokens of the pass", ylabel="a token / plain decoding", title="Cost of a token (1: saves nothing)"
    )
    ax.set_ylim(0, min(3.0, 1.15 * max(1.0, tallest)))
    ax.xaxis.set_major_locator(plot.whole_ticks())


def _with_intervals(ax: Axes, xs: Sequence[int], ys: Sequence[Interval], label: str, look: dict[str, Any]) -> None:
    """Values with their intervals, drawn faintly so that the values stay legible."""
    ax.plot(xs, [y.value for y in ys], label=label, **look)
    plot.intervals(ax, xs, ys, color=look["color"], alpha=0.45, linewidth=0.8, linestyle="none")


def bytes_lines(found: Bandwidth) -> Figure:
    """Time of single-token passes over the bytes they read; the slope is bandwidth, the start a pass's fixed time."""
    figure, (ax,) = plot.canvas()
    for i, line in enumerate(found.lines):
        own = [p for p in found.passes if p.quant == line.quant]
        reach = np.array([0.0, max(p.n_bytes for p in own)])
        label = f"{line.quant}: {line.bandwidth_gb_s.value:.1f} GB/s, fixed {line.fixed_ms.value:.2f} ms"
        ax.plot([p.n_bytes / 1e6 for p in own], [p.ms for p in own], color=plot.color(i), marker=plot.marker(i), ls="")
        times = line.fixed_ms.value + reach / line.bandwidth_gb_s.value / 1e6
        ax.plot(reach / 1e6, times, color=plot.color(i), label=label)
    ax.set(xlabel="bytes read, MB", ylabel="T(1), ms", title="Single-token passes of models of known bytes")
    plot.legend((ax,))
    return figure


def roofline(machine: Machine) -> Figure:
    """T(k) against the bytes a pass reads (left); operations a second against operations a byte (right)."""
    work = {name: own for name, own in machine.work.items() if own}
    if not work:
        raise AnalysisError("No pass of known bytes was timed.", hint="Measure T(k) with `mlsd calibrate MODEL`.")
    memory = machine.bandwidth
    speed = memory.stream[memory.n_threads].value
    passes = [one for own in work.values() for one in own]
    top = 1.3 * max(one.gflop_s for one in passes)
    low = min(one.intensity for one in passes)
    ends = np.array([min(one.n_bytes for one in passes), max(one.n_bytes for one in passes)]) * (0.8, 1.25)
    roof: dict[str, Any] = {"color": plot.INK, "linestyle": "--", "linewidth": 0.9}
    roof["label"] = f"memory, {speed:.1f} GB/s"
    figure, parts = plot.panels(work, 2)
    for (left, right), shown in parts:
        for i, (name, own) in enumerate(shown):
            look = plot.look(i, markersize=3.5, label=name)
            left.plot([one.n_bytes / 1e6 for one in own], [one.ms for one in own], **look)
            right.plot([one.intensity for one in own], [one.gflop_s for one in own], **look)
        left.plot(ends / 1e6, ends / speed / 1e6, **roof)
        right.plot([0.8 * low, max(low, top / speed)], [0.8 * low * speed, max(low * speed, top)], **roof)
        left.set(xlabel="MB read by a pass", ylabel="T(k), ms", title="Time of a pass (k grows upwards)")
        right.set(xlabel="operations a byte", ylabel="GFLOP/s", title="Roofline (k grows to the right)")
        for ax in (left, right):
            ax.set(xscale="log", yscale="log")
            plot.plain_ticks(ax.xaxis, ax.yaxis)
        plot.legend((left, right), 3)
    return figure


COST_FIGURES = (
    FigureEntry("machine-passes", "T(k) of calibrated models", pass_curves, lambda study: study.machine.curves),
    FigureEntry("machine-bandwidth", "Bandwidth through llama.cpp", bytes_lines, lambda study: study.machine.bandwidth),
    FigureEntry("machine-roofline", "Passes against memory and arithmetic", roofline, lambda study: study.machine),
)
EXPERT_FIGURE = FigureEntry(
    "expert-coverage", "Expert coverage and what it saves", expert_shares, lambda study: study.machine.mixtures
)

"""Figures of the machine: what passes cost, which experts they read, what the memory gives. Values in, figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from mlsd.analysis.bandwidth import BytesLine
from mlsd.analysis.calibration import TargetCurve
from mlsd.analysis.experts import CoverageTable
from mlsd.analysis.predict import GammaPrediction
from mlsd.errors import AnalysisError
from mlsd.measure.rows import TimedPass
from mlsd.report import plot


def pass_curves(curves: Mapping[str, TargetCurve]) -> Figure:
    """T(k) with intervals and the kernel steps found, and T(1)/T(k); one series a model."""
    if not curves:
        raise AnalysisError("No pass was timed.", hint="Measure T(k) with `mlsd calibrate MODEL`.")
    figure, (left, right) = plot.canvas(columns=2)
    for i, (name, curve) in enumerate(curves.items()):
        rows = [p.rows for p in curve.passes]
        values = [p.ms.value for p in curve.passes]
        left.plot(rows, values, color=plot.color(i), marker=plot.marker(i), label=name)
        for p in curve.passes:
            bars = plot.error_bars(p.ms.value, p.ms.low, p.ms.high)
            left.errorbar([p.rows], [p.ms.value], yerr=bars, color=plot.color(i), capsize=2, linewidth=0.8)
        for edge in curve.steps.edges if curve.steps is not None else ():
            left.axvline(edge - 0.5, color=plot.color(i), linewidth=0.8, linestyle=":")
        right.plot(rows, [curve.efficiency[k] for k in rows], color=plot.color(i), marker=plot.marker(i), label=name)
    widest = max(p.rows for curve in curves.values() for p in curve.passes)
    k = np.arange(1, widest + 1)
    right.plot(k, 1 / k, color=plot.INK, linewidth=0.9, linestyle="--", label="saves nothing (1/k)")
    left.set(xlabel="rows k", ylabel="T(k), ms", title="One target pass (dotted: kernel step)")
    right.set(xlabel="rows k", ylabel="T(1) / T(k)", title="Target efficiency", ylim=(0, 1.05))
    plot.legend(figure, (left, right))
    return figure


def expert_theory(table: CoverageTable, name: str) -> Figure:
    """Distinct experts of a layer against both theories, and bytes a token of a pass against plain decoding."""
    figure, (left, right) = plot.canvas(columns=2)
    k = [row.window for row in table.rows]
    left.fill_between(
        k, [r.lowest_layer for r in table.rows], [r.highest_layer for r in table.rows], color=plot.color(0), alpha=0.15
    )
    left.plot(k, [r.text for r in table.rows], color=plot.color(0), marker=plot.marker(0), label="measured, text")
    drafted = [(r.window, r.drafted) for r in table.rows if r.drafted is not None]
    if drafted:
        left.plot(*zip(*drafted, strict=True), color=plot.color(1), marker=plot.marker(1), label="measured, drafted")
    left.plot(k, [r.uniform for r in table.rows], color=plot.INK, linestyle="--", label="independent uniform")
    label = f"one correlation, r = {table.correlation:.2f}"
    left.plot(k, [r.correlated for r in table.rows], color=plot.color(2), linestyle="-.", label=label)
    left.set(xlabel="tokens k", ylabel="distinct experts", title=f"{name}: E = {table.n_experts}, K = {table.n_used}")
    share = [(r.window, r.amortization) for r in table.rows if r.amortization is not None]
    if share:
        windows, values = zip(*share, strict=True)
        right.plot(windows, values, color=plot.color(0), marker=plot.marker(0))
        right.plot(windows, [1 / w for w in windows], color=plot.INK, linewidth=0.9, linestyle=":", label="dense (1/k)")
    right.axhline(1.0, color=plot.INK, linewidth=0.9, linestyle="--")
    right.set(xlabel="tokens k", ylabel="bytes a token / plain decoding", title="Amortization", ylim=(0, 1.1))
    plot.legend(figure, (left, right))
    return figure


def bytes_lines(passes: Sequence[TimedPass], lines: Sequence[BytesLine]) -> Figure:
    """Time of single-token passes over the bytes they read, with the line of each quantization."""
    if not passes:
        raise AnalysisError("No pass of known bytes was timed.", hint="Measure some with `mlsd bandwidth`.")
    figure, (ax,) = plot.canvas()
    for i, line in enumerate(lines):
        own = [p for p in passes if p.quant == line.quant]
        reach = np.array([0.0, max(p.n_bytes for p in own)])
        label = f"{line.quant}: {line.bandwidth_gb_s.value:.1f} GB/s, fixed {line.fixed_ms.value:.2f} ms"
        ax.plot([p.n_bytes / 1e6 for p in own], [p.ms for p in own], color=plot.color(i), marker=plot.marker(i), ls="")
        times = line.fixed_ms.value + reach / line.bandwidth_gb_s.value / 1e6
        ax.plot(reach / 1e6, times, color=plot.color(i), label=label)
    ax.set(xlabel="bytes read, MB", ylabel="T(1), ms", title="Single-token passes of models of known bytes")
    plot.legend(figure, (ax,))
    return figure


def predicted_against_measured(predictions: Sequence[GammaPrediction]) -> Figure:
    """Predicted over measured tok/s of configurations that were left out, with the measurement's own spread."""
    if not predictions:
        raise AnalysisError("Nothing was predicted.", hint="Measure plain decoding and two gammas: mlsd run B.")
    figure, (ax,) = plot.canvas()
    measured = [p.measured_tok_s for p in predictions]
    ends = [0.9 * min(measured), 1.1 * max(measured)]
    ax.plot(ends, ends, color=plot.INK, linewidth=0.9, linestyle="--", label="as measured")
    for i, gamma in enumerate(sorted({p.gamma for p in predictions})):
        own = [p for p in predictions if p.gamma == gamma]
        ax.errorbar(
            [p.measured_tok_s for p in own],
            [p.predicted_tok_s for p in own],
            xerr=[p.measured_tok_s * (p.spread or 0.0) for p in own],
            color=plot.color(i),
            marker=plot.marker(i),
            linestyle="",
            capsize=2,
            label=f"gamma {gamma}",
        )
    ax.set(xlabel="measured tok/s", ylabel="predicted tok/s", xscale="log", yscale="log", title="Each gamma left out")
    plot.legend(figure, (ax,), columns=3)
    return figure

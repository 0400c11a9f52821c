"""Figures of the frames of a study: `study.arms`, `.passes`, `.bandwidth`, `.experts`, `.equations`.

Each function draws one frame, or a part of it that was chosen, on axes that it is given or makes, and returns them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mlsd.analysis.study.traffic import ENOUGH, M2_ULTRA, Roof
from mlsd.errors import AnalysisError
from mlsd.report.render import plot

if TYPE_CHECKING:
    import pandas as pd


def _drawing(draw: Callable[..., None]) -> Callable[..., Axes]:
    """The function as a notebook calls it: without axes it makes some, and a legend."""

    @functools.wraps(draw)
    def drawn(frame: pd.DataFrame, ax: Axes | None = None, **more: Any) -> Axes:
        if frame.empty:
            raise AnalysisError("The frame has no rows to draw.", hint="Time passes of a model: mlsd calibrate MODEL.")
        if ax is not None:
            draw(frame, ax, **more)
            return ax
        import matplotlib.pyplot as plt

        # The first figure of a notebook makes pyplot interactive; inside a style, its end would take that back.
        figure = plt.figure(figsize=(plot.WIDTH_IN, 3.6), layout="constrained", facecolor="white")
        with plot.style():
            axes = figure.subplots()
            draw(frame, axes, **more)
            plot.legend([axes])
        return axes  # type: ignore[no-any-return]  # pyplot's hints

    return drawn


def _by(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The parts of a frame by what these columns hold, in order of appearance."""
    for key, group in frame.groupby(list(columns), sort=False, dropna=False):
        yield " + ".join(str(part) for part in key), group


def curve(ax: Axes, frame: pd.DataFrame, x: str, y: str, label: str, look: dict[str, Any]) -> None:
    """A column over another; where it has intervals, these so faint that the values stay legible.

    An interval beyond tenfold says nothing of its value, and hides those that do: it is left out.
    """
    xs, ys = frame[x].astype(float), frame[y].astype(float)
    ax.plot(xs, ys, label=label, **look)
    if f"{y}_low" in frame:
        low, high = frame[f"{y}_low"].astype(float), frame[f"{y}_high"].astype(float)
        says = high <= 10 * low
        bars = [(ys - low).where(says), (high - ys).where(says)]
        ax.errorbar(xs, ys, yerr=bars, color=look["color"], alpha=0.45, linewidth=0.8, linestyle="none")


@_drawing
def speedups(arms: pd.DataFrame, ax: Axes, printed: pd.DataFrame | None = None) -> None:
    """Speedup over gamma of each target and draft, with 95 % intervals; of `study.arms`.

    `printed`: columns `gamma` and `speedup` of what somebody published, as crosses.
    """
    measured = arms[arms["speedup"].notna()]
    for i, (label, line) in enumerate(_by(measured, "target", "draft", "text")):
        curve(ax, line.sort_values("gamma"), "gamma", "speedup", label, plot.look(i))
    if printed is not None:
        ax.plot(printed["gamma"], printed["speedup"], "x", color="grey", label="printed")
    ax.axhline(1.0, color=plot.INK, linewidth=0.9, linestyle=":")
    ax.set(xlabel="gamma", ylabel="speedup over plain decoding")
    # From 0 on, and open above for what a reader draws beside: an upper end that is set hides it.
    ax.axhline(0.0, linewidth=0.0).sticky_edges.y.append(0.0)


@_drawing
def passes(frame: pd.DataFrame, ax: Axes) -> None:
    """T(k) of each model; of `study.passes`."""
    for i, (label, line) in enumerate(_by(frame[frame["kind"] == "target_pass"], "model")):
        curve(ax, line, "k", "ms", label, plot.look(i, markersize=3.5))
    ax.set(xlabel="k, rows of the pass", ylabel="T(k), ms")


@_drawing
def efficiency(frame: pd.DataFrame, ax: Axes) -> None:
    """T(1) / T(k) of each model beside the line where a pass saves nothing; of `study.passes`."""
    timed = frame[frame["kind"] == "target_pass"]
    for i, (label, line) in enumerate(_by(timed, "model")):
        ax.plot(line["k"].astype(float), line["efficiency"], label=label, **plot.look(i, markersize=3.5))
    k = [1 + i * (float(timed["k"].max()) - 1) / 100 for i in range(101)]
    ax.plot(k, [1 / rows for rows in k], color=plot.INK, linewidth=0.9, linestyle="--", label="saves nothing, 1/k")
    ax.set(xlabel="k, rows of the pass", ylabel="T(1) / T(k)", ylim=(0, max(1.05, float(timed["efficiency"].max()))))


@_drawing
def memory(bandwidth: pd.DataFrame, ax: Axes) -> None:
    """Time of single-token passes over the bytes they read, by quantization; of `study.bandwidth`."""
    for i, (label, line) in enumerate(_by(bandwidth[bandwidth["source"] == "known bytes"], "model")):
        ax.plot(line["read_gb"] * 1e3, line["ms"], label=label, linestyle="none", **plot.look(i))
    ax.set(xlabel="bytes read, MB", ylabel="T(1), ms", xlim=(0, None), ylim=(0, None))


@_drawing
def amortization(bandwidth: pd.DataFrame, ax: Axes) -> None:
    """Time and bytes of a position of a pass over k, in plain passes, beside the study's 1/k; of `study.bandwidth`."""
    timed = bandwidth[(bandwidth["source"] == "timed passes") & bandwidth["time_a_token"].notna()]
    for i, (label, line) in enumerate(_by(timed, "model")):
        k = line["k"].astype(float)
        ax.plot(k, line["time_a_token"], label=f"{label}, time", **plot.look(i, markersize=3.5))
        ax.plot(k, line["bytes_a_token"], label=f"{label}, bytes", color=plot.color(i), linestyle="--")
    ks = sorted(set(timed["k"].astype(float)))
    claim: dict[str, Any] = {"color": plot.INK, "linestyle": ":", "linewidth": 1.2}
    ax.plot(ks, [1 / k for k in ks], label="all weights loaded once (study), 1/k", **claim)
    ax.axhline(1.0, color=plot.INK, linewidth=0.9)
    ax.set(xlabel="k, positions of the pass", ylabel="a position / a plain pass", ylim=(0, None))


@_drawing
def roofline(bandwidth: pd.DataFrame, ax: Axes, other: Roof | None = M2_ULTRA) -> None:
    """Operations a second over operations a byte, under what memory and arithmetic gave; of `study.bandwidth`."""
    passes_of_bytes = bandwidth[bandwidth["gflop_s"].notna() & bandwidth["intensity"].notna()]
    timed = passes_of_bytes[passes_of_bytes["source"] == "timed passes"]
    shown = timed if len(timed) else passes_of_bytes
    for i, (label, line) in enumerate(_by(shown, "model")):
        ax.plot(line["intensity"], line["gflop_s"], label=label, **plot.look(i, markersize=3.5, linewidth=0.9))
        ends = line.iloc[[0, -1]] if len(line) > 1 else line
        for _, row in ends.iterrows():
            where: dict[str, Any] = {"xytext": (0, -9), "textcoords": "offset points", "ha": "center", "fontsize": 6.5}
            ax.annotate(f"k {row['k']}", (row["intensity"], row["gflop_s"]), color=plot.color(i), **where)
    below = bandwidth[bandwidth["of_measured"].notna()]  # the roof that memory gave
    wide = shown[shown["k"] >= ENOUGH]["gflop_s"]
    left = 0.5 * float(shown["intensity"].min())
    right = 2 * float(shown["intensity"].max())
    if len(below):
        gb_s = float((below["gb_s"] / below["of_measured"]).iloc[0])
        fastest = float(wide.max()) if len(wide) else None
        _roof(ax, Roof(name="here, measured", gb_s=gb_s, gflop_s=fastest, source="measured"), left, right)
    if other is not None:
        _roof(ax, other, left, max(right, 3 * (other.ridge or 1.0)), alpha=0.5)
    ax.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="GFLOP/s")
    plot.plain_ticks(ax.xaxis, ax.yaxis)


def _roof(ax: Axes, roof: Roof, left: float, right: float, **look: Any) -> None:
    """Memory's slope up to the ridge, then arithmetic's level."""
    corner = right if roof.ridge is None else max(left, roof.ridge)
    xs, ys = [left, corner], [left * roof.gb_s, corner * roof.gb_s]
    label = f"{roof.name}: {roof.gb_s:.4g} GB/s"
    if roof.gflop_s is not None and roof.ridge is not None:
        xs.append(max(right, corner))
        ys.append(roof.gflop_s)
        label += f", {roof.gflop_s:.4g} GFLOP/s, ridge at {roof.ridge:.3g}"
    ax.plot(xs, ys, color=plot.INK, linestyle="--", linewidth=1.0, label=label, **look)


@_drawing
def experts(frame: pd.DataFrame, ax: Axes) -> None:
    """Distinct experts of a layer in k tokens, counted and by theory; of one model of `study.experts`."""
    k = frame["k"].astype(float)
    span: dict[str, Any] = {"color": plot.color(0), "alpha": 0.15, "linewidth": 0}
    ax.fill_between(k, frame["lowest_layer"], frame["highest_layer"], label="span of layers", **span)
    ax.plot(k, frame["counted"], color=plot.color(0), marker="o", markersize=4, label="counted, text")
    if frame["counted_drafted"].notna().any():
        look: dict[str, Any] = {"color": plot.color(3), "marker": "D", "markersize": 4}
        ax.plot(k, frame["counted_drafted"], label="counted, drafted", **look)
    ax.plot(k, frame["uniform"], color=plot.INK, linestyle="--", label="independent uniform (MoESD)")
    ax.plot(k, frame["correlated"], color=plot.color(2), linestyle="-.", label="one correlation r, fitted")
    ax.set(xlabel="k, consecutive tokens", ylabel="distinct experts a layer", ylim=(0, 1.05 * frame["uniform"].max()))
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


@_drawing
def equations(frame: pd.DataFrame, ax: Axes) -> None:
    """Speedup over gamma as measured, by equations 1 and 2 and the corrected form; of one pair of `study.equations`."""
    frame = frame.sort_values("gamma")
    curve(ax, frame, "gamma", "speedup", "measured", plot.look(0))
    names = (("eq1", "equation 1"), ("eq2", "equation 2"), ("corrected", "corrected"))
    for i, (name, label) in enumerate((named for named in names if frame[named[0]].notna().any()), 1):
        look = plot.look(i, markersize=4, linestyle="--", linewidth=1.0, markerfacecolor="none")
        ax.plot(frame["gamma"].astype(float), frame[name], label=label, **look)
    ax.axhline(1.0, color=plot.INK, linewidth=0.9, linestyle=":")
    ax.set(xlabel="gamma", ylabel="speedup", ylim=(0, None))
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))

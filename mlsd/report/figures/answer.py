"""The one figure that shows the answer: what every setting gains or loses against plain decoding.

Raises AnalysisError with what is missing instead of drawing nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from mlsd.analysis.results.speedups import Speedup
from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry
from mlsd.stats import Interval, grouped
from mlsd.trials.decisions import Effect

_MOST_ROWS = 30
_LABEL_LETTERS = 48
_NARROW = 20  # ends of an interval so many times apart say nothing, and would squeeze what does
_COLORS: dict[Effect, str] = {
    "faster": plot.COLORS[2],
    "slower": plot.COLORS[1],
    "no difference": plot.INK,
    "undecided": plot.COLORS[0],
}


def gains(study: Study) -> Figure:
    """Every setting against plain decoding (1): right of the line it is faster. Bars are 95 % intervals."""
    arms = [arm for arm in study.by_arm if arm.ratio is not None]
    if not arms:
        raise AnalysisError("No valid pair of SD and AR trials.", hint="Measure some: mlsd run B D.")
    rows = _shown(arms)
    figure, (ax,) = plot.canvas(max(1.8, 0.9 + 0.25 * len(rows)))
    places = range(len(rows), 0, -1)
    several = len({arm.target for arm in arms}) > 1
    for effect, color in _COLORS.items():
        own = [(place, arm.ratio) for place, arm in zip(places, rows, strict=True) if arm.effect == effect]
        for place, ratio in own:
            ends = _ends(ratio)
            if ends is not None:
                ax.plot(ends, [place, place], color=color, linewidth=1.4, label="_interval")
        points = [(ratio.value, place) for place, ratio in own if ratio is not None]
        if points:
            ax.plot(*zip(*points, strict=True), color=color, marker="o", linestyle="none", label=effect)
    labels = [f"{arm.target} + {arm.setting}" if several else arm.setting for arm in rows]
    ax.set_yticks(list(places), [textwrap.fill(label, _LABEL_LETTERS) for label in labels], fontsize=7.5)
    ax.axvline(1.0, color=plot.INK, linewidth=0.9, linestyle=":")
    ax.set(xscale="log", xlabel="speedup over plain decoding", ylim=(0.3, len(rows) + 0.7))
    plot.plain_ticks(ax.xaxis)
    ax.grid(axis="y", visible=False)
    plot.legend(figure, [ax], 4)
    return figure


def _shown(arms: Sequence[Speedup]) -> list[Speedup]:
    """The fastest settings of each target, each with a like share of the rows; the fastest first."""
    groups = grouped(arms, lambda arm: arm.target)
    share = max(1, _MOST_ROWS // len(groups))
    return [
        arm for own in groups.values() for arm in sorted(own, key=lambda a: -(a.ratio.value if a.ratio else 0))[:share]
    ]


def _ends(ratio: Interval | None) -> tuple[float, float] | None:
    if ratio is None or ratio.low is None or ratio.high is None or ratio.high > _NARROW * ratio.low:
        return None
    return ratio.low, ratio.high


ANSWER_FIGURE = FigureEntry("answer", "What each setting gains", gains, "speedups.speedups, all workloads together")

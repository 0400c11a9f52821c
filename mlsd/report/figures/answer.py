"""The figure that shows the answer: what every setting gains or loses against plain decoding."""

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry
from mlsd.stats import grouped
from mlsd.trials.arms import PLAIN
from mlsd.trials.results import ArmResult

_MOST_ROWS = 24
_WIDE_IN, _NARROW_IN = 8.2, 3.7  # beside the flags on a desk; on a phone
_LETTERS, _NARROW_LETTERS = 46, 28  # of a label's line
_COLORS = {"faster": plot.FASTER, "slower": plot.SLOWER, "not decided yet": plot.OPEN}
_TICKS = (0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 50)


def gains(study: Study, *, narrow: bool = False) -> Figure:
    """Each setting on each text against plain decoding (1); bars are 95 % intervals. Raises: AnalysisError."""
    arms = [arm for arm in study.results if arm.ratio is not None and not arm.is_plain and arm.n_valid]
    if not arms:
        raise AnalysisError("No valid pair of SD and AR trials.", hint="Measure some: mlsd run B D.")
    rows = _shown(arms)
    width_in, height_in, letters = (_NARROW_IN, 0.58, _NARROW_LETTERS) if narrow else (_WIDE_IN, 0.3, _LETTERS)
    figure, (ax,) = plot.canvas(1.0 + height_in * len(rows), width_in=width_in)
    heights = range(len(rows), 0, -1)
    labels = [
        textwrap.fill(f"{label} (a bound)" if narrow and arm.control else label, letters)
        for label, arm in zip(arm_labels(rows), rows, strict=True)
    ]
    for height, label, arm in zip(heights, labels, rows, strict=True):
        assert arm.ratio is not None
        color = plot.INK if arm.control else _COLORS.get(arm.effect, plot.INK)
        ends = [end for end in (arm.ratio.low, arm.ratio.high) if end is not None]
        if ends:
            ax.plot(ends, [height, height], color=color, linewidth=2.4, solid_capstyle="butt", label="_interval")
        word = "a bound" if arm.control else arm.effect
        ax.plot([arm.ratio.value], [height], color=color, marker="o", markersize=6.5, linestyle="none", label=word)
        value = arm.ratio.text(2, "x") + ("" if ends else " (one block)")
        look: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "va": "center", "fontsize": 9}
        if narrow:  # both stand above the bar
            ax.text(0.0, height + 0.5, label, ha="left", **look)
            ax.text(1.0, height + 0.5, value, ha="right", color=color, **look)
        else:
            ax.text(1.01, height, f"{value} {word}", ha="left", color=color, **look)
    ax.set_yticks(list(heights), labels)
    line = 0.22 if narrow else 0.5
    ax.tick_params(axis="y", length=0, labelleft=not narrow)
    ax.vlines([1.0] * len(rows), [h - line for h in heights], [h + line for h in heights], plot.INK)
    cut = f"; the fastest {len(rows)} of {len(arms)}" if len(rows) < len(arms) else ""
    about = textwrap.fill(f"speedup over plain decoding, {_common(arms)}{cut}", 48 if narrow else 90)
    ax.set(xscale="log", xlabel=about, ylim=(0.4, len(rows) + 0.8))
    low, high = ax.get_xlim()
    low, high = min(low, 0.85), max(high, 1.18)
    ticks = [tick for tick in _TICKS if low <= tick <= high and (high < 4 * low or tick not in (0.8, 1.25, 1.5, 3))]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set_xlim(low, high)
    for word, offset, side in (("slower", -7, "right"), ("faster", 7, "left")):
        where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        ax.annotate(word, (1.0, 1.0), (offset, 5), ha=side, color=_COLORS[word], fontweight="bold", **where)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    return figure


_ALWAYS: tuple[Callable[[ArmResult], str], ...] = (lambda arm: arm.text, lambda arm: f"{arm.question.n_predict} tokens")
_IF_NEEDED: tuple[Callable[[ArmResult], str], ...] = (
    lambda arm: f"suite {arm.question.suite}",
    lambda arm: arm.question.source,
    lambda arm: f"run {arm.session}",
    lambda arm: f"settings {arm.question.settings[:6]}",
)


def arm_labels(arms: Sequence[ArmResult], naming: Callable[[ArmResult], str] | None = None) -> list[str]:
    """Labels that differ: of target, text and length of output each has what is not the same of all."""
    several = len({arm.case.target.id for arm in arms}) > 1

    def setting(arm: ArmResult) -> str:
        if arm.is_plain:
            return f"{arm.case.target.id}, {PLAIN}"
        return f"{arm.case.target.id} + {arm.setting}" if several else arm.setting

    differ = [part for part in _ALWAYS if len({part(arm) for arm in arms}) > 1]
    labels = [", ".join(((naming or setting)(arm), *(part(arm) for part in differ))) for arm in arms]
    for part in _IF_NEEDED:
        rows = list(zip(labels, arms, strict=True))
        of_label = {label: {part(arm) for other, arm in rows if other == label} for label in set(labels)}
        labels = [f"{label}, {part(arm)}" if len(of_label[label]) > 1 else label for label, arm in rows]
    return labels


def _common(arms: Sequence[ArmResult]) -> str:
    """What labels leave out, for it is the same of all."""
    values = ({part(arm) for arm in arms} for part in (lambda arm: arm.case.target.id, *_ALWAYS))
    return ", ".join((*(same.pop() for same in values if len(same) == 1), "log scale"))


def _shown(arms: Sequence[ArmResult]) -> list[ArmResult]:
    """The fastest settings of each target, each with a like share of the rows; the fastest first."""
    groups = grouped(arms, lambda arm: arm.case.target.id)
    share = max(1, _MOST_ROWS // len(groups))
    fastest = (sorted(group, key=lambda arm: -(arm.ratio.value if arm.ratio else 0)) for group in groups.values())
    return [arm for group in fastest for arm in group[:share]]


ANSWER_FIGURE = FigureEntry("answer", "What each setting gains", gains, narrow=partial(gains, narrow=True))

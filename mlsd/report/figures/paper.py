"""The study's figures 1 to 5 with ours in them; each function reads a Study.

A function raises AnalysisError with what is missing instead of drawing nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec import structs

from mlsd.analysis.study.study import Study
from mlsd.audits import published_tables as published
from mlsd.errors import AnalysisError
from mlsd.records import DRAFT_MODEL
from mlsd.report.figures.answer import arm_labels
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry
from mlsd.report.tables.paper import StudyRow, length_arms, models_of, printed_rows, study_rows
from mlsd.stats import Interval, grouped
from mlsd.trials.arms import PLAIN
from mlsd.trials.results import ArmResult

_GREY = plot.INK


def _targets(study: Study, arms: Sequence[ArmResult]) -> dict[str, int]:
    """Model of the study -> number of the first of these arms with our target in its place."""
    numbers = {arm.case.target.id: i for i, arm in reversed(list(enumerate(arms)))}
    return {model: numbers[ours] for model, ours in models_of(study).items() if ours in numbers}


def _decided(arms: Iterable[ArmResult], what: str) -> list[ArmResult]:
    found = [arm for arm in arms if arm.ratio is not None]
    if not found:
        raise AnalysisError(
            f"No valid pair of speculative and plain trials {what}.", hint="Measure some: mlsd run B D."
        )
    return found


def _main_suites(study: Study) -> list[ArmResult]:
    """Arms of the suites that sweep gamma; where neither was measured draft models, the study's method, or all arms."""
    arms = [arm for arm in study.pooled if not arm.is_plain and arm.n_valid]
    swept = [arm for arm in arms if arm.question.suite in ("B", "D")]
    return swept or [arm for arm in arms if arm.case.drafter.name == DRAFT_MODEL] or arms


def _label(arm: ArmResult) -> str:
    return f"{arm.case.target.id} + {arm.label}"


def _setting(arm: ArmResult) -> str:
    return f"{arm.case.target.id} + {arm.setting}"


def _draft(arm: ArmResult) -> str:
    draft = arm.case.drafter.draft
    return draft.id if draft else arm.case.drafter.name


def _printed(
    ax: Axes, xs: Sequence[float], rows: Sequence[StudyRow], field: str, index: int | None, label: str = ""
) -> None:
    """Published values, and whether they can be: hollow, dashed; grey where no model of ours has their place."""
    shade = _GREY if index is None else plot.color(index)
    mark = "x" if index is None else plot.marker(index)
    style: dict[str, Any] = {
        "markerfacecolor": "none",
        "linestyle": "--",
        "linewidth": 0.9,
        "alpha": 0.45 if index is None else 0.8,
    }
    label = f"{label or rows[0].cells['target']} ({_published(rows)})"
    ax.plot(xs, [float(row.cells[field]) for row in rows], color=shade, marker=mark, label=label, **style)


def _published(rows: Sequence[StudyRow]) -> str:
    refuted = sum(row.verdict is not None and row.verdict.verdict == "impossible" for row in rows)
    return "published" + (f"; {f'{refuted} of {len(rows)} ' * (refuted < len(rows))}impossible" if refuted else "")


def _even(axes: Sequence[Axes]) -> None:
    """The line of 1; axes, which panels share, end where speedups do, not where the widest interval does."""
    lines = [line for ax in axes for line in ax.lines if not str(line.get_label()).startswith("_")]
    for ax in axes:
        ax.axhline(1.0, color=_GREY, linewidth=0.9, linestyle=":")
    axes[0].set_ylim(0, min(axes[0].get_ylim()[1], 2 * max([1.0, *(float(np.max(one.get_ydata())) for one in lines)])))


def speedup_over_active(study: Study) -> Figure:
    """Speedup over the parameters active for a token, at the study's gamma of 8 or the most measured one."""
    arms = _decided(_main_suites(study), "with known model sizes")
    gammas = Counter(arm.case.gamma for arm in arms)
    gamma = 8 if gammas[8] else gammas.most_common(1)[0][0]
    active = {name: (facts.n_parameters_active or 0) / 1e9 for name, facts in study.facts.items()}
    chosen = [arm for arm in arms if arm.case.gamma == gamma and active.get(arm.case.target.id)]
    if not chosen:
        raise AnalysisError("The active parameters of no measured target are known.")
    figure, parts = plot.panels(dict(zip(arm_labels(chosen), chosen, strict=True)), by=_draft)
    models = {model.id: model for model in published.load("study").models}
    for (ax,), own in parts:
        ax.set_xscale("log")
        for index, (label, arm) in enumerate(own):
            plot.series(ax, [active[arm.case.target.id]], [arm.ratio], label, index, len(own))
        ours = _targets(study, [arm for _, arm in own])
        for row in study_rows(study):
            model = row.cells["target"]
            if row.cells["draft"] == "draft_0.8b" and row.gamma == gamma:
                _printed(ax, [float(models[model].active_b or "nan")], [row], "speedup", ours.get(model))
        ax.set(xlabel="active parameters a token, 10⁹", ylabel=f"speedup at gamma {gamma}")
        plot.plain_ticks(ax.xaxis)
        plot.legend([ax])
    _even(figure.axes)
    return figure


def speedup_over_gamma(study: Study) -> Figure:
    """Speedup over gamma with 95 % intervals."""
    figure = _over_gamma(study, _decided(_main_suites(study), "over gamma"), "speedup", lambda arm: arm.ratio)
    _even(figure.axes)
    for ax in figure.axes:
        ax.set(ylabel="speedup over plain decoding")
    return figure


def acceptance_over_gamma(study: Study) -> Figure:
    """Accepted share of proposed tokens over gamma."""
    arms = [arm for arm in _main_suites(study) if arm.acceptance_rate is not None]
    if not arms:
        raise AnalysisError("No valid SD trial proposed a token.", hint="Measure some: mlsd run B D.")
    figure = _over_gamma(
        study, arms, "acceptance_percent", lambda arm: Interval(value=100 * (arm.acceptance_rate or 0))
    )
    for ax in figure.axes:
        ax.set(ylabel="accepted / proposed, %", ylim=(0, None))
    return figure


def _over_gamma(
    study: Study, arms: Sequence[ArmResult], field: str, of: Callable[[ArmResult], Interval | None]
) -> Figure:
    """Lines over gamma, and the published ones of the drafts in whose place one of ours stands, or all where none does.

    A line holds the arms of one target and drafter on one question in one run.
    """
    ordered = sorted(arms, key=lambda arm: arm.case.gamma)
    found = list(grouped(ordered, lambda arm: (arm.question, arm.session, _label(arm))).values())
    labels = arm_labels([line[0] for line in found], _label)
    figure, parts = plot.panels(dict(zip(labels, found, strict=True)), by=lambda line: _draft(line[0]))
    published_lines = grouped(study_rows(study), lambda row: (row.cells["target"], row.cells["draft"]))
    models = models_of(study)
    for (ax,), own in parts:
        for index, (label, line) in enumerate(own):
            plot.series(ax, [arm.case.gamma for arm in line], list(map(of, line)), label, index, len(own))
        firsts = [line[0] for _, line in own]
        numbers, drafts = _targets(study, firsts), set(map(_draft, firsts))
        mapped = {key: rows for key, rows in published_lines.items() if models.get(key[1]) in drafts}
        for (target, _), rows in (mapped or published_lines).items():
            _printed(ax, [row.gamma for row in rows], rows, field, numbers.get(target), rows[0].pair)
        ax.set_xlabel("gamma")
        ax.set_xticks([4, 8, 16], ["4", "8", "16"])
        plot.legend([ax])
    return figure


def throughputs(study: Study) -> Figure:
    """Decode tok/s of plain decoding and of every pair of the study, ours beside the printed ones."""
    rows = [(row, row.ours) for row in study_rows(study) if row.ours is not None and row.ours.tok_s]
    if not rows:
        raise AnalysisError("No arm stands in the place of one of the study's.", hint="Measure some: mlsd run B D.")
    labels = [f"{row.pair}, {row.gamma}\n{arm.case.target.id} + {arm.label}" for row, arm in rows]
    places = np.arange(len(rows), 0, -1.0)
    figure, (left, right) = plot.canvas(1.4 + 0.34 * len(rows), 2)
    printed = [float(row.cells["tok_s"]) for row, _ in rows]
    measured, print_of = [arm.tok_s or 0.0 for _, arm in rows], _published([row for row, _ in rows])
    parts = ((left, printed, "M2 Ultra", f"speculative ({print_of})"), (right, measured, "here", "speculative, here"))
    for i, (ax, values, title, label) in enumerate(parts):
        ax.barh(places, values, height=0.7, color=plot.color(i), label=label)
        ax.set(title=title, xlabel="decode tok/s", ylim=(0.4, len(rows) + 0.6))
        ax.set_yticks(places, labels if ax is left else [""] * len(rows), fontsize=6.5)
        ax.grid(axis="y", visible=False)
    plain = [float(row.cells["tok_s"]) / float(row.cells["speedup"]) for row, _ in rows]
    own = [arm.plain_tok_s or float("nan") for _, arm in rows]
    for ax, values in ((left, plain), (right, own)):
        ax.plot(values, places, color=_GREY, marker="D", markersize=4, linestyle="none", label="plain decoding")
    plot.legend([left, right])
    return figure


def prompt_length_sweep(study: Study) -> Figure:
    """Throughput and speedup over the prompt's length."""
    arms = [(arm, length) for arm, length in length_arms(study) if arm.ratio is not None and arm.n_valid and length]
    if not arms:
        raise AnalysisError("No prompt of exact length has a valid pair of trials.", hint="Measure them: mlsd run F.")
    lengths = len({arm.question.n_predict for arm, _ in arms}) > 1
    groups = grouped(arms, lambda row: (_setting(row[0]), structs.replace(row[0].question, text=""), row[0].session))
    labels = arm_labels([rows[0][0] for rows in groups.values()], _setting)
    lines = dict(zip(labels, groups.values(), strict=True))
    figure, parts = plot.panels(lines, 2, 3.2, by=lambda rows: _draft(rows[0][0]))
    sweep = printed_rows("figure 5")
    for (left, right), own in parts:
        right.set_xscale("log")
        for index, (label, rows) in enumerate(own):
            group, xs = [arm for arm, _ in rows], [float(length) for _, length in rows]
            tokens = f", {group[0].question.n_predict} tokens" if lengths else ""
            mark: dict[str, Any] = {"marker": plot.marker(index)}
            left.plot(xs, [a.tok_s or 0 for a in group], color=plot.color(index), label=label, **mark)
            plain = f"{group[0].case.target.id}, {PLAIN}{tokens}"
            left.plot(xs, [a.plain_tok_s or 0 for a in group], color=_GREY, linewidth=1.0, label=plain, **mark)
            plot.series(right, xs, [arm.ratio for arm in group], label, index, len(own))
        name = "moe_q4 + draft_0.8b, gamma 8; 256 and more: one caption"
        _printed(right, [float(row.cells["n_prompt"]) for row in sweep], sweep, "speedup", None, name)
        left.set(xscale="log", xlabel="prompt tokens", ylabel="decode tok/s", ylim=(0, None))
        right.set(xlabel="prompt tokens", ylabel="speedup over plain decoding")
        for ax in (left, right):
            ax.set_xticks([32, 128, 512, 1024], ["32", "128", "512", "1024"], minor=False)
            ax.set_xticks([], minor=True)
        plot.legend([left, right], 1)
    _even([right for (_, right), _ in parts])
    return figure


STUDY_FIGURES = (
    FigureEntry("speedup-active", "Figure 1: speedup over active parameters", speedup_over_active),
    FigureEntry("speedup-gamma", "Figure 2: speedup over gamma", speedup_over_gamma),
    FigureEntry("throughput", "Figure 3: throughput", throughputs),
    FigureEntry("acceptance-gamma", "Figure 4: acceptance over gamma", acceptance_over_gamma),
    FigureEntry("prompt-length", "Figure 5: prompt length", prompt_length_sweep),
)

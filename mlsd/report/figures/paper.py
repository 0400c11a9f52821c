"""The study's five figures, ours and the published values together. One function a figure; each reads a Study.

A function raises AnalysisError with what is missing instead of drawing nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.results.depths import deep_arms
from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.records import DRAFT_MODEL
from mlsd.report.figures.answer import arm_labels
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry
from mlsd.report.tables.paper import length_arms, models_of, study_rows
from mlsd.stats import grouped
from mlsd.trials.arms import PLAIN
from mlsd.trials.results import ArmResult

_GREY = plot.INK


def _targets(study: Study) -> dict[str, int]:
    """Number of each target, which fixes its colour and marker in all figures."""
    return {target: i for i, target in enumerate(dict.fromkeys(study.trials["target"]))}


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


def _draft(arm: ArmResult) -> str:
    draft = arm.case.drafter.draft
    return draft.id if draft else arm.case.drafter.name


def _counterparts(study: Study) -> dict[str, int]:
    """Model of the study -> number of our target in its place."""
    numbers = _targets(study)
    return {model: numbers[ours] for model, ours in models_of(study.profile).items() if ours in numbers}


def _points(ax: Axes, xs: Sequence[float], arms: Sequence[ArmResult], index: int, label: str) -> None:
    """Speedups with their intervals."""
    values = [arm.ratio.value for arm in arms if arm.ratio]
    ax.plot(xs, values, color=plot.color(index), marker=plot.marker(index), label=label)
    plot.intervals(ax, xs, [arm.ratio for arm in arms], color=plot.color(index), capsize=2.5, linewidth=1.0)


def _printed(ax: Axes, xs: Sequence[float], ys: Sequence[float], index: int | None, label: str) -> None:
    """Published values: hollow markers, dashed; grey where no model of ours stands in their place."""
    shade = _GREY if index is None else plot.color(index)
    mark = "x" if index is None else plot.marker(index)
    style: dict[str, Any] = {
        "markerfacecolor": "none",
        "linestyle": "--",
        "linewidth": 0.9,
        "alpha": 0.45 if index is None else 0.8,
    }
    ax.plot(xs, ys, color=shade, marker=mark, label=label, **style)


def _even(ax: Axes) -> None:
    ax.axhline(1.0, color=_GREY, linewidth=0.9, linestyle=":")


def speedup_over_active(study: Study) -> Figure:
    """Figure 1: speedup over the parameters active for a token, at the study's gamma of 8 or the most measured one."""
    arms = _decided(_main_suites(study), "with known model sizes")
    gammas = Counter(arm.case.gamma for arm in arms)
    gamma = 8 if gammas[8] else gammas.most_common(1)[0][0]
    figure, (ax,) = plot.canvas()
    drawn, numbers = 0, _targets(study)
    chosen = [arm for arm in arms if arm.case.gamma == gamma]
    for arm, label in zip(chosen, arm_labels(chosen), strict=True):
        facts = study.facts.get(arm.case.target.id)
        if facts is None or not facts.n_parameters_active:
            continue
        _points(ax, [facts.n_parameters_active / 1e9], [arm], numbers[arm.case.target.id], label)
        drawn += 1
    if not drawn:
        raise AnalysisError("The active parameters of no measured target are known.")
    models = {model.id: model for model in published.load("study").models}
    mapped = _counterparts(study)
    for row in study_rows(study):
        cells = row.cells
        if cells["draft"] == "draft_0.8b" and cells["gamma"] == "8":
            x = float(models[cells["target"]].active_b or "nan")
            _printed(ax, [x], [float(cells["speedup"])], mapped.get(cells["target"]), f"study: {cells['target']}")
    _even(ax)
    ax.set(xscale="log", xlabel="active parameters a token, 10⁹", ylabel=f"speedup over plain decoding, gamma {gamma}")
    ax.set_ylim(bottom=0)
    plot.plain_ticks(ax.xaxis)
    plot.legend(figure, [ax])
    return figure


def acceptance_over_gamma(study: Study) -> Figure:
    """Figure 4: accepted share of proposed tokens over gamma."""
    figure, (ax,) = plot.canvas()
    numbers, drawn = _targets(study), 0
    for (target, drafter), arms in _lines(_main_suites(study)).items():
        known = [(a.case.gamma, 100 * a.acceptance_rate) for a in arms if a.acceptance_rate is not None]
        if known:
            index = numbers[target]
            ax.plot(*zip(*known, strict=True), color=plot.color(index), marker=plot.marker(index), label=drafter)
            drawn += 1
    if not drawn:
        raise AnalysisError("No valid SD trial proposed a token.", hint="Measure some: mlsd run B D.")
    mapped = _counterparts(study)
    for (target, draft), rows in _study_lines(study).items():
        xs = [float(cells["gamma"]) for cells in rows]
        ys = [float(cells["acceptance_percent"]) for cells in rows]
        _printed(ax, xs, ys, mapped.get(target), f"study: {target} + {draft}")
    ax.set(xlabel="gamma", ylabel="accepted / proposed, %", ylim=(0, None))
    _gamma_axis(ax)
    plot.legend(figure, [ax])
    return figure


def throughput_bars(study: Study) -> Figure:
    """Figure 3: decode tok/s of every arm, plain decoding first; the study's own beside it, on its own scale."""
    rows: list[tuple[str, float, int, bool]] = []
    numbers, arms = _targets(study), _main_suites(study)
    asked = {arm.question for arm in arms}
    shown = [one for one in study.pooled if one in arms or (one.is_plain and (not arms or one.question in asked))]
    for arm, label in zip(shown, arm_labels(shown), strict=True):
        if arm.tok_s is not None:
            rows.append((label, arm.tok_s, numbers[arm.case.target.id], arm.is_plain))
    if not rows:
        raise AnalysisError("No valid trial measured a throughput.")
    rows = rows[:40]
    printed: list[tuple[str, float, int, bool]] = []
    mapped = _counterparts(study)
    speeds = {row[0]: row[3] for row in published.load("study").table("table 4").rows}
    for model, index in mapped.items():
        if model.startswith("draft"):
            continue
        printed.append((f"{model}, {PLAIN}", float(speeds[model].split("±")[0]), index, True))
        for row in study_rows(study):
            if row.cells["target"] == model:
                label = f"+ {row.cells['draft']}, gamma {row.cells['gamma']}"
                printed.append((label, float(row.cells["tok_s"]), index, False))
    height = max(2.4, 0.9 + 0.2 * max(len(rows), len(printed)))
    figure, axes = plot.canvas(height, 2 if printed else 1)
    _bars(axes[0], rows, "this machine")
    if printed:
        _bars(axes[1], printed, "study, as printed")
    return figure


def _bars(ax: Axes, rows: Sequence[tuple[str, float, int, bool]], title: str) -> None:
    places = range(len(rows), 0, -1)
    for place, (_, value, index, plain) in zip(places, rows, strict=True):
        ax.barh(place, value, color=plot.color(index), alpha=1.0 if plain else 0.55, height=0.75)
        ax.annotate(f" {value:.0f}" if value >= 100 else f" {value:.1f}", (value, place), va="center", fontsize=7)
    ax.set_yticks(list(places), [row[0] for row in rows], fontsize=7.5)
    ax.set(xlabel="decode tok/s", title=title)
    ax.margins(x=0.16)
    ax.grid(axis="y", visible=False)


def prompt_length_sweep(study: Study) -> Figure:
    """Figure 5: throughput and speedup over the prompt's length."""
    arms = [(arm, length) for arm, length in length_arms(study) if arm.ratio is not None and arm.n_valid and length]
    if not arms:
        raise AnalysisError("No prompt of exact length has a valid pair of trials.", hint="Measure them: mlsd run F.")
    figure, (left, right) = plot.canvas(3.2, 2)
    groups = grouped(arms, lambda row: (f"{row[0].case.target.id} + {row[0].setting}", row[0].question.n_predict))
    for index, ((name, n_predict), rows_of) in enumerate(groups.items()):
        group, xs = [arm for arm, _ in rows_of], [float(length) for _, length in rows_of]
        label = f"{name}, {n_predict} tokens"
        shade, mark = plot.color(index), plot.marker(index)
        left.plot(xs, [a.tok_s or 0 for a in group], color=shade, marker=mark, label=label)
        plain = [a.plain_tok_s or 0 for a in group]
        left.plot(xs, plain, color=_GREY, marker=mark, linewidth=1.0, label=f"{group[0].case.target.id}, {PLAIN}")
        _points(right, xs, group, index, label)
    rows = published.load("study").table("figure 5")
    at = {name: rows.columns.index(name) for name in ("n_prompt", "speedup")}
    xs = [float(row[at["n_prompt"]]) for row in rows.rows]
    _printed(right, xs, [float(row[at["speedup"]]) for row in rows.rows], None, "study: moe_q4 + draft_0.8b, gamma 8")
    _even(right)
    left.set(xscale="log", xlabel="prompt tokens", ylabel="decode tok/s", ylim=(0, None))
    right.set(xscale="log", xlabel="prompt tokens", ylabel="speedup over plain decoding", ylim=(0, None))
    for ax in (left, right):
        ax.set_xticks([32, 128, 512, 1024], ["32", "128", "512", "1024"], minor=False)
        ax.set_xticks([], minor=True)
    plot.legend(figure, [left, right], 1)
    return figure


def over_depth(study: Study) -> Figure:
    """Over the depth of a prompt: a verification's cost, speedup with its interval, and acceptance; a line an arm."""
    found = grouped(deep_arms(study.results), lambda row: (_label(row.found), row.found.case.gamma, row.prompt))
    lines = {key: rows for key, rows in found.items() if len({row.depth for row in rows}) > 1}
    if not lines:
        raise AnalysisError(
            "No prompt was measured at several depths.", hint="Measure some: mlsd bench --depth 0,4096."
        )
    figure, axes = plot.canvas(3.2, 3)
    cost, speedup, acceptance = axes
    for index, ((name, gamma, prompt), rows) in enumerate(lines.items()):
        label = f"{name}, gamma {gamma}, {prompt}"
        look: dict[str, Any] = {"color": plot.color(index), "marker": plot.marker(index), "label": label}
        _line(cost, [(row.depth, row.verify_ms / row.plain_ms) for row in rows if row.plain_ms], look)
        shares = [(row.depth, row.found.acceptance_rate) for row in rows]
        _line(acceptance, [(depth, 100 * share) for depth, share in shares if share is not None], look)
        decided = [row for row in rows if row.found.ratio is not None]
        _points(speedup, [row.depth for row in decided], [row.found for row in decided], index, label)
    _even(speedup)
    cost.set(ylabel="T(k) / T(1)", ylim=(0, None))
    speedup.set(ylabel="speedup over plain decoding", ylim=(0, None))
    acceptance.set(ylabel="accepted / proposed, %", ylim=(0, None))
    for ax in axes:
        ax.set(xlabel="tokens before the prompt")
        ax.xaxis.set_major_locator(plot.whole_ticks(4))
    plot.legend(figure, axes)
    return figure


def _line(ax: Axes, points: Sequence[tuple[int, float]], look: dict[str, Any]) -> None:
    if points:
        ax.plot(*zip(*points, strict=True), **look)


def speedup_over_gamma(study: Study) -> Figure:
    """Figure 2: speedup over gamma, a panel for each draft."""
    arms = _decided(_main_suites(study), "over gamma")
    drafts = list(dict.fromkeys(map(_draft, arms)))[:3]
    figure, axes = plot.canvas(3.6, len(drafts), sharey=True)
    numbers, mapped = _targets(study), _counterparts(study)
    ours = models_of(study.profile)
    for ax, draft in zip(axes, drafts, strict=True):
        for (target, label), line in _lines([a for a in arms if _draft(a) == draft]).items():
            _points(ax, [arm.case.gamma for arm in line], line, numbers[target], label.replace(f" + {draft}", ""))
        for (target, printed), rows in _study_lines(study).items():
            if ours.get(printed) == draft:
                xs, ys = [float(c["gamma"]) for c in rows], [float(c["speedup"]) for c in rows]
                _printed(ax, xs, ys, mapped.get(target), f"study: {target}")
        _even(ax)
        ax.set(xlabel="gamma", title=f"draft {draft}", ylim=(0, None))
        _gamma_axis(ax)
    axes[0].set_ylabel("speedup over plain decoding")
    plot.legend(figure, axes)
    return figure


def _lines(arms: Sequence[ArmResult]) -> dict[tuple[str, str], list[ArmResult]]:
    """Arms of one target and drafter on one question, in order of gamma, by target and label."""
    found = grouped(sorted(arms, key=lambda a: a.case.gamma), lambda a: (a.question, _label(a)))
    firsts = [line[0] for line in found.values()]
    texts, lengths = {a.text for a in firsts}, {a.question.n_predict for a in firsts}
    lines = {}
    for (question, label), line in found.items():
        suite = "" if question.suite in ("B", "D") else f", suite {question.suite}"
        text = f", {line[0].text}" if len(texts) > 1 else ""
        length = f", {question.n_predict} tokens" if len(lengths) > 1 else ""
        lines[line[0].case.target.id, f"{label}{text}{length}{suite}"] = line
    return lines


def _study_lines(study: Study) -> dict[tuple[str, str], list[dict[str, str]]]:
    return grouped((row.cells for row in study_rows(study)), lambda cells: (cells["target"], cells["draft"]))


def _gamma_axis(ax: Axes) -> None:
    ax.set_xticks([4, 8, 16], ["4", "8", "16"])


STUDY_FIGURES = (
    FigureEntry("speedup-active", "Figure 1: speedup over active parameters", speedup_over_active),
    FigureEntry("speedup-gamma", "Figure 2: speedup over gamma, each draft", speedup_over_gamma),
    FigureEntry("throughput", "Figure 3: throughput of every arm", throughput_bars),
    FigureEntry("acceptance-gamma", "Figure 4: acceptance over gamma", acceptance_over_gamma),
    FigureEntry("prompt-length", "Figure 5: prompt length", prompt_length_sweep),
)
DEPTH_FIGURE = FigureEntry("depth", "Speculation over depth", over_depth)

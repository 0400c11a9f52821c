"""The study's figures 1, 2 and 4 with ours in them; 3 and 5 are tables. Each function reads a Study.

A function raises AnalysisError with what is missing instead of drawing nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from mlsd.analysis import frames
from mlsd.analysis.study.study import Study
from mlsd.audits import published_tables as published
from mlsd.columns import chosen, column, columns
from mlsd.errors import AnalysisError
from mlsd.records import DRAFT_MODEL
from mlsd.report.figures import draw
from mlsd.report.figures.answer import arm_labels
from mlsd.report.render import plot
from mlsd.report.render.sections import FigureEntry
from mlsd.report.tables.paper import models_of, study_rows
from mlsd.trials.fields import ARM

if TYPE_CHECKING:
    import pandas as pd


def speedup_over_active(study: Study) -> Figure:
    """Speedup over the parameters active for a token, at the study's gamma of 8 or the most measured one."""
    arms = _swept(study, "speedup")
    gamma = 8 if (arms["gamma"] == 8).any() else int(arms["gamma"].mode()[0])
    arms, printed = arms[(arms["gamma"] == gamma) & arms["active"].notna()], _printed(study)
    if arms.empty:
        raise AnalysisError("The active parameters of no measured target are known.")
    printed = printed[(printed["gamma"] == gamma) & (printed["draft"] == "draft_0.8b")]
    figure = _lines(arms, printed, "active", "speedup")
    for ax in figure.axes:
        ax.set(xscale="log", xlabel="active parameters a token, 10⁹", ylabel=f"speedup at gamma {gamma}")
        plot.plain_ticks(ax.xaxis)
    return figure


def speedup_over_gamma(study: Study) -> Figure:
    """Speedup over gamma with 95 % intervals, without those beyond tenfold."""
    return _over_gamma(study, "speedup", "speedup over plain decoding")


def acceptance_over_gamma(study: Study) -> Figure:
    """Accepted share of proposed tokens over gamma."""
    return _over_gamma(study, "acceptance_rate", "accepted / proposed")


def _over_gamma(study: Study, y: str, label: str) -> Figure:
    figure = _lines(_swept(study, y), _printed(study), "gamma", y)
    for ax in figure.axes:
        ax.set(xlabel="gamma", ylabel=label)
        ax.set_xticks([4, 8, 16], ["4", "8", "16"])
    return figure


def _swept(study: Study, y: str) -> pd.DataFrame:
    """Arms over all texts of the suites that sweep gamma, where there is none those of draft models, else all."""
    valid = [arm for arm in study.pooled if not arm.is_plain and arm.n_valid]
    of_suites = [arm for arm in valid if arm.question.suite in ("B", "D")]
    arms = of_suites or [arm for arm in valid if arm.case.drafter.name == DRAFT_MODEL] or valid
    active = {name: facts.n_parameters_active for name, facts in study.facts.items()}
    frame = frames.frame_of(arms, chosen(ARM, "target drafter draft gamma speedup acceptance_rate")).assign(
        label=arm_labels(arms, lambda arm: f"{arm.case.target.id} + {arm.label}"),
        active=[(active.get(arm.case.target.id) or float("nan")) / 1e9 for arm in arms],
    )
    frame["draft"] = frame["draft"].fillna(frame["drafter"])
    frame = frame[frame[y].notna()]
    if frame.empty:
        raise AnalysisError("No speculative trial of the study's suites is valid.", hint="Measure some: mlsd run B D.")
    return frame


def _printed(study: Study) -> pd.DataFrame:
    """Table 5 of the study, with the models of ours in its models' places."""
    active = {model.id: float(model.active_b or "nan") for model in published.load("study").models}
    ours = models_of(study)
    from_row = (
        *columns("pair; gamma:n; draft; audit"),
        column("speedup", "2", of=lambda row: float(row["speedup"])),
        column("acceptance_rate", "2", of=lambda row: float(row["acceptance_percent"]) / 100),
        column("active", "2", of=lambda row: active[row["target"]]),
        column("our_target", of=lambda row: ours.get(row["target"])),
        column("our_draft", of=lambda row: ours.get(row["draft"])),
    )
    return frames.frame_of(study_rows(study), from_row)


def _lines(arms: pd.DataFrame, printed: pd.DataFrame, x: str, y: str) -> Figure:
    """Lines of ours, and the published ones of the drafts in whose place one of ours stands, or all where none does.

    Published values are hollow and dashed, and grey where no model of ours has their place.
    """
    by_label = {str(label): line for label, line in arms.groupby("label", sort=False)}
    figure, parts = plot.panels(by_label, by=lambda line: str(line["draft"].iloc[0]))
    for (ax,), lines in parts:
        targets = {line["target"].iloc[0]: index for index, (_, line) in reversed(list(enumerate(lines)))}
        for index, (label, line) in enumerate(lines):
            draw.curve(ax, line.sort_values(x), x, y, label, plot.look(index))
        of_drafts = printed[printed["our_draft"].isin({line["draft"].iloc[0] for _, line in lines})]
        for pair, line in (printed if of_drafts.empty else of_drafts).groupby("pair", sort=False):
            ours = targets.get(line["our_target"].iloc[0])
            n = int((line["audit"] == "impossible").sum())
            refuted = f"; {'' if n == len(line) else f'{n} of {len(line)} '}impossible" if n else ""
            look = {"color": plot.INK, "marker": "x", "alpha": 0.45} if ours is None else plot.look(ours, alpha=0.8)
            look |= {"label": f"{pair} (published{refuted})", "markerfacecolor": "none"}
            ax.plot(line[x], line[y], linestyle="--", linewidth=0.9, **look)
        if y == "speedup":
            ax.axhline(1.0, color=plot.INK, linewidth=0.9, linestyle=":")
        plot.legend([ax])
    # The axes, which panels share, end where values do, not where the widest interval does.
    figure.axes[0].set_ylim(0, 1.2 * max(float(arms[y].max()), float(printed[y].max())))
    return figure


STUDY_FIGURES = (
    FigureEntry("speedup-active", "Figure 1: speedup over active parameters", speedup_over_active),
    FigureEntry("speedup-gamma", "Figure 2: speedup over gamma", speedup_over_gamma),
    FigureEntry("acceptance-gamma", "Figure 4: acceptance over gamma", acceptance_over_gamma),
)

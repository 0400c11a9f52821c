"""The report's pages on the machine: what passes cost and memory gives; whether verification amortizes on experts."""

from __future__ import annotations

from mlsd.analysis.experts.amortization import sentences
from mlsd.analysis.study.study import Study, attempt
from mlsd.report.figures import machine as figures
from mlsd.report.render.sections import FigureEntry, Section, section
from mlsd.report.tables import machine as tables

COST_FIGURES = (
    FigureEntry("machine-passes", "T(k) of calibrated models", figures.pass_curves, lambda study: study.machine.curves),
    FigureEntry(
        "machine-bandwidth", "Bandwidth through llama.cpp", figures.bytes_lines, lambda study: study.machine.bandwidth
    ),
    FigureEntry(
        "machine-roofline", "Passes against memory and arithmetic", figures.roofline, lambda study: study.machine
    ),
)
EXPERT_FIGURES = (
    FigureEntry(
        "expert-coverage",
        "Expert coverage and what it saves",
        figures.expert_shares,
        lambda study: study.machine.mixtures,
    ),
)


def costs(study: Study) -> Section:
    """T(k) of every calibrated model, bandwidth, and each gamma predicted without its own trials."""
    return section(
        "costs",
        "What passes cost and memory gives",
        study,
        lambda study: tables.curve_table(study.machine.curves),
        lambda study: tables.bandwidth_table(study.machine.bandwidth, study.environment),
        lambda study: tables.validation_table(study.machine.validation),
        figures=COST_FIGURES,
    )


def experts(study: Study) -> Section:
    """The answer in sentences for each mixture, then experts, bytes and times."""
    mixtures, _ = attempt(lambda: study.machine.mixtures)
    found = mixtures or ()
    return section(
        "experts",
        "Experts: does verification amortize at batch one?",
        study,
        *(lambda _, one=one: tables.share_table(one) for one in found),
        text=tuple(text for one in found for text in sentences(one)),
        figures=EXPERT_FIGURES,
    )

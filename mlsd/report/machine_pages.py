"""The report's pages on the machine: what passes cost and memory gives; whether verification amortizes on experts."""

from __future__ import annotations

from mlsd.analysis.experts.amortization import sentences
from mlsd.analysis.experts.study_mixture import read_bounds, words
from mlsd.analysis.study.study import Study, attempt
from mlsd.report.figures import machine as figures
from mlsd.report.render.sections import FigureEntry, Section, section
from mlsd.report.tables import machine as tables

_STUDY_KS = (1, 2, 5, 9, 17)  # plain decoding, and the study's draft lengths 4, 8 and 16 with the target's own token
COST_FIGURES = (
    FigureEntry(
        "machine-passes",
        "T(k) of calibrated models",
        figures.pass_curves,
        "calibration.target_curve",
        lambda study: study.machine.curves,
    ),
    FigureEntry(
        "machine-bandwidth",
        "Bandwidth through llama.cpp",
        figures.bytes_lines,
        "bandwidth.bytes_lines",
        lambda study: study.machine.bandwidth,
    ),
    FigureEntry(
        "machine-roofline",
        "Passes against memory and arithmetic",
        figures.roofline,
        "machine_findings.Machine.work",
        lambda study: study.machine,
    ),
    FigureEntry(
        "machine-predicted",
        "Predicted against measured tok/s",
        figures.predicted_against_measured,
        "predict.leave_one_gamma_out",
        lambda study: [row.prediction for row in study.machine.validation.checked],
    ),
)
EXPERT_FIGURES = (
    FigureEntry(
        "expert-coverage",
        "Expert coverage and what it saves",
        figures.expert_shares,
        "amortization.mixture",
        lambda study: study.machine.mixtures,
    ),
    FigureEntry(
        "expert-times",
        "T(k) of a mixture against theory",
        figures.expert_times,
        "amortization.theories",
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
    found, bounds = mixtures or (), read_bounds(_STUDY_KS) if mixtures else []
    made = [*map(tables.share_table, found), *(tables.theory_table(one) for one in found if one.theories)]
    made += [tables.bounds_table(bounds)] if found else []
    return section(
        "experts",
        "Experts: does verification amortize at batch one?",
        study,
        *(lambda _, one=one: one for one in made),
        said=(*(text for one in found for text in sentences(one)), *((words(bounds),) if found else ())),
        figures=EXPERT_FIGURES,
    )

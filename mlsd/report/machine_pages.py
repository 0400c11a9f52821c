"""The report's pages on the machine: what passes cost and memory gives; whether verification amortizes on experts."""

from __future__ import annotations

import msgspec
from matplotlib.figure import Figure

from mlsd.analysis.experts.amortization import sentences
from mlsd.analysis.experts.study_mixture import read_bounds, words
from mlsd.analysis.study.study import Study, attempt
from mlsd.report.figures import machine as figures_machine
from mlsd.report.render.sections import FigureEntry, Section, of_tables, with_figures
from mlsd.report.tables import machine as machine_tables

_STUDY_KS = (1, 2, 5, 9, 17)  # plain decoding, and the study's draft lengths 4, 8 and 16 with the target's own token


def costs(study: Study) -> Section:
    """T(k) of every calibrated model, bandwidth, and each gamma predicted without its own trials."""
    machine = study.machine
    section = of_tables(
        "costs",
        "What passes cost and memory gives",
        lambda: machine_tables.curve_table(machine.curves),
        lambda: machine_tables.bandwidth_table(machine.bandwidth, study.environment),
        lambda: machine_tables.validation_table(machine.validation),
    )
    bandwidth, _ = attempt(lambda: machine.bandwidth)
    said = (bandwidth.verdict.reason,) if bandwidth is not None else ()
    return _whole(section, study, COST_FIGURES, said)


def experts(study: Study) -> Section:
    """The answer in sentences for each mixture, then experts, bytes and times."""
    machine = study.machine
    mixtures, _ = attempt(lambda: machine.mixtures)
    bounds = read_bounds(_STUDY_KS) if mixtures else []
    section = of_tables(
        "experts",
        "Experts: does verification amortize at batch one?",
        *(lambda found=found: machine_tables.share_table(found) for found in mixtures or ()),
        *(lambda found=found: machine_tables.theory_table(found) for found in mixtures or () if found.theories),
        *((lambda: machine_tables.bounds_table(bounds),) if mixtures else ()),
    )
    said = [text for found in mixtures or () for text in sentences(found)]
    return _whole(section, study, EXPERT_FIGURES, (*said, words(bounds)) if mixtures else ())


def _whole(section: Section, study: Study, entries: tuple[FigureEntry, ...], said: tuple[str, ...]) -> Section:
    """The section with figures and sentences; a reason that several parts give is said once."""
    whole = with_figures(section, study, entries)
    own = [reason for reason in whole.missing if not any(reason.endswith(other) for other in section.missing)]
    return msgspec.structs.replace(whole, text=(*said, *whole.text), missing=(*section.missing, *own))


def pass_curves(study: Study) -> Figure:
    """T(k) of every calibrated model with intervals and kernel steps (left), and its target efficiency (right)."""
    return figures_machine.pass_curves(study.machine.curves)


def bandwidth_lines(study: Study) -> Figure:
    """Time of single-token passes over the bytes they read; the slope is bandwidth, the start a pass's fixed time."""
    found = study.machine.bandwidth
    return figures_machine.bytes_lines(found.passes, found.lines)


def gammas_left_out(study: Study) -> Figure:
    """Decode tok/s of each gamma predicted from plain decoding, the other gammas and the calibration, over measured."""
    rows = [row.prediction for row in study.machine.validation.checked]
    return figures_machine.predicted_against_measured(rows)


def expert_coverage(study: Study) -> Figure:
    """Distinct experts of a layer in k tokens against both theories (left); bytes and time of a token (right)."""
    return figures_machine.expert_shares(study.machine.mixtures)


def expert_times(study: Study) -> Figure:
    """T(k) as measured and as forms give it that read the experts counted, those of a theory, or all weights."""
    return figures_machine.expert_times(study.machine.mixtures)


COST_FIGURES: tuple[FigureEntry, ...] = (
    ("machine-passes", "T(k) of calibrated models", pass_curves, "calibration.target_curve"),
    ("machine-bandwidth", "Bandwidth through llama.cpp", bandwidth_lines, "bandwidth.bytes_lines"),
    ("machine-predicted", "Predicted against measured tok/s", gammas_left_out, "predict.leave_one_gamma_out"),
)
EXPERT_FIGURES: tuple[FigureEntry, ...] = (
    ("expert-coverage", "Expert coverage and what it saves", expert_coverage, "amortization.mixture"),
    ("expert-times", "T(k) of a mixture against theory", expert_times, "amortization.theories"),
)

"""What a report says, in order, as values; `html` and `markdown` give it a form.

A part that the data cannot fill says what is missing; nothing is drawn or tabled of nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mlsd import __version__
from mlsd.analysis.results.best_setting import BestSetting, best_settings, by_target, first_line
from mlsd.analysis.results.speedups import deep_arms
from mlsd.analysis.study.study import Study, attempt
from mlsd.report import machine_pages
from mlsd.report.figures.machines import MACHINES_FIGURES
from mlsd.report.figures.rounds import ROUND_FIGURES
from mlsd.report.figures.study import DEPTH_FIGURE, STUDY_FIGURES
from mlsd.report.render.sections import Page, Section, Trace, of_tables, with_figures
from mlsd.report.render.table import Table
from mlsd.report.tables import machines, methods
from mlsd.report.tables import records as record_tables
from mlsd.report.tables import results as result_tables
from mlsd.report.tables import study as study_tables
from mlsd.report.tables.compare import comparison_table
from mlsd.report.tables.passes import pass_table
from mlsd.units import counted


def build(study: Study) -> Page:
    """The report of a study."""
    answers = [] if study.trials.empty else best_settings(study.by_workload)
    sections = _of_machine(study) if study.trials.empty else _of_trials(study, answers)
    return Page(
        title=f"Speculative decoding measured: {Path(study.source).name}",
        answer=first_line(answers),
        summary=_summary(study),
        notes=study.notes,
        sections=sections,
        traces=_traces(sections),
        made=f"mlsd {__version__}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
    )


def _of_machine(study: Study) -> tuple[Section, ...]:
    """The sections of a database of calibrations alone."""
    return (
        of_tables("machine", "Machine and models", *_each(study, _MACHINE)),
        machine_pages.costs(study),
        machine_pages.experts(study),
        of_tables("passes", "Parts of a pass", lambda: pass_table(study)),
    )


def _of_trials(study: Study, answers: list[BestSetting]) -> tuple[Section, ...]:
    return (
        _answer(answers),
        of_tables("machine", "Machine and models", *_each(study, _MACHINE)),
        *_machines(study),
        of_tables("warnings", "Warnings", *_each(study, [record_tables.warning_table])),
        with_figures(
            of_tables("study", "The study's tables, ours beside them", *_each(study, _STUDY)), study, STUDY_FIGURES
        ),
        *_comparisons(study),
        _results(study),
        *((of_tables("energy", "Energy", lambda: result_tables.energy_table(study)),) if study.energy else ()),
        _methods(study),
        machine_pages.costs(study),
        machine_pages.experts(study),
        with_figures(of_tables("fits", "Cost models and fits", *_each(study, _FITS)), study, ROUND_FIGURES),
        of_tables("claims", "Published claims", *_each(study, [result_tables.claim_table])),
        of_tables("audit", "Audit", *_each(study, [record_tables.audit_table])),
        of_tables("trials", "Every trial", *_each(study, [record_tables.trial_table])),
    )


def _comparisons(study: Study) -> list[Section]:
    """Builds or settings side by side, where any were."""
    tables = [lambda one=one: comparison_table(one) for one in study.comparisons]
    if not tables:
        return []
    section = of_tables("compare", "Builds and settings side by side", *tables)
    return [msgspec.structs.replace(section, text=tuple(one.answer for one in study.comparisons))]


def _results(study: Study) -> Section:
    tables, deep = [lambda: result_tables.speedup_table(study.by_workload)], deep_arms(study.trials)
    if deep:
        tables.append(lambda: result_tables.depth_table(study))
    section = of_tables("results", "All settings", *tables)
    return with_figures(section, study, [DEPTH_FIGURE]) if len({row.depth for row in deep}) > 1 else section


def _machines(study: Study) -> tuple[Section, ...]:
    """The machines of the database side by side; nothing where there is one."""
    if not study.beside:
        return ()
    tables = _each(study, [machines.machine_table, machines.claims_by_machine])
    return (with_figures(of_tables("machines", "Machines compared", *tables), study, MACHINES_FIGURES),)


def _answer(answers: list[BestSetting]) -> Section:
    section = of_tables("answer", "Which setting to use", lambda: result_tables.best_table(answers))
    return msgspec.structs.replace(section, text=tuple(by_target(answers)))


def _methods(study: Study) -> Section:
    section = of_tables("methods", "Drafting methods by task", *_each(study, methods.METHOD_TABLES))
    said, _ = attempt(lambda: methods.reasons(study))
    return msgspec.structs.replace(section, text=(*(said or ()), *section.text))


_MACHINE = [record_tables.environment_table, record_tables.models_table]
_STUDY = [study_tables.table_4, study_tables.table_5, study_tables.table_6, study_tables.table_f]
_FITS: list[Callable[[Study], Table]] = [
    lambda study: result_tables.gamma_table(study.pair_fits),
    lambda study: result_tables.model_table(study.pair_fits, study.curve_fits),
]


def _each(study: Study, makers: Sequence[Callable[[Study], Table]]) -> list[Callable[[], Table]]:
    return [lambda make=make: make(study) for make in makers]  # type: ignore[misc]


def _summary(study: Study) -> str:
    trials = study.trials
    if trials.empty:
        return (
            f"{study.source} holds calibrations and no trials: what asks for trials is left out. Measure some beside "
            f"them: mlsd run B --db {study.source}."
        )
    failed, valid = int((trials["status"] == "failed").sum()), int(trials["valid"].fillna(False).sum())
    place = study.environment.chip or study.environment.machine
    targets, suites = counted(trials["target"].nunique(), "target"), counted(trials["suite"].nunique(), "suite")
    return (
        f"{len(trials)} trials ({valid} valid, {failed} failed) of {targets} in {suites}, on {place} "
        f"({study.environment.backend or 'backend not known'})."
    )


def _traces(sections: Sequence[Section]) -> tuple[Trace, ...]:
    traces = [Trace(what="The first line", how="best_setting.first_line over speedups.speedups(by workload)")]
    for section in sections:
        for table in section.tables:
            columns = "; ".join(f"{head.label}: {head.trace}" for head in table.heads if head.trace)
            traces.append(Trace(what=table.title, how=f"{table.trace}. {columns}"))
        traces += [Trace(what=p.title, how=p.trace) for p in section.pictures]
    return tuple(traces)

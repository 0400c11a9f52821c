"""What a report says, in order, as values; `html` and `markdown` give it a form.

A part that the data cannot fill says what is missing; nothing is drawn or tabled of nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from mlsd import __version__
from mlsd.analysis.answer import Advice, advise, by_target, first_line
from mlsd.analysis.study import Study, attempt
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.report import plot, record_tables, result_tables, study_tables
from mlsd.report.figures import STUDY_FIGURES
from mlsd.report.methods import METHOD_TABLES
from mlsd.report.plot import Picture
from mlsd.report.round_figures import ROUND_FIGURES
from mlsd.report.tables import Table

FigureEntry = tuple[str, str, Callable[[Study], Figure], str]


class Section(Record, frozen=True, kw_only=True):
    """One part of a report."""

    id: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    missing: tuple[str, ...] = ()


class Trace(Record, frozen=True, kw_only=True):
    """Where the numbers of one table or figure come from."""

    what: str
    how: str


class Page(Record, frozen=True, kw_only=True):
    """A whole report."""

    title: str
    answer: str
    summary: str
    notes: tuple[str, ...]
    sections: tuple[Section, ...]
    traces: tuple[Trace, ...]
    made: str


def build(study: Study) -> Page:
    """The report of a study."""
    advices = advise(study.by_workload)
    sections = (
        _answer(advices),
        _tables("machine", "Machine and models", *_each(study, _MACHINE)),
        _tables("warnings", "Warnings", *_each(study, [record_tables.warning_table])),
        _with_figures(
            _tables("study", "The study's tables, ours beside them", *_each(study, _STUDY)), study, STUDY_FIGURES
        ),
        _tables("results", "All settings", lambda: result_tables.speedup_table(study.by_workload)),
        _tables("methods", "Drafting methods by task", *_each(study, METHOD_TABLES)),
        _with_figures(_tables("fits", "Cost models and fits", *_each(study, _FITS)), study, ROUND_FIGURES),
        _tables("claims", "Published claims", *_each(study, [result_tables.claim_table])),
        _tables("audit", "Audit", *_each(study, [record_tables.audit_table])),
        _tables("trials", "Every trial", *_each(study, [record_tables.trial_table])),
    )
    return Page(
        title=f"Speculative decoding measured: {study.source}",
        answer=first_line(advices),
        summary=_summary(study),
        notes=study.notes,
        sections=sections,
        traces=_traces(sections),
        made=f"mlsd {__version__}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
    )


def _answer(advices: list[Advice]) -> Section:
    section = _tables("answer", "Which setting to use", lambda: result_tables.advice_table(advices))
    return Section(
        id=section.id,
        title=section.title,
        text=tuple(by_target(advices)),
        tables=section.tables,
        missing=section.missing,
    )


_MACHINE = [record_tables.environment_table, record_tables.models_table]
_STUDY = [study_tables.table_4, study_tables.table_5, study_tables.table_6, study_tables.table_f]
_FITS = [result_tables.gamma_table, result_tables.model_table]


def _each(study: Study, makers: Sequence[Callable[[Study], Table]]) -> list[Callable[[], Table]]:
    return [lambda make=make: make(study) for make in makers]  # type: ignore[misc]


def _tables(id: str, title: str, *makers: Callable[[], Table]) -> Section:
    tables, missing = [], []
    for make in makers:
        table, reason = attempt(make)
        if table is None:
            missing.append(reason)
        elif table.rows:
            tables.append(table)
        else:
            missing.append(f"{table.title}: {table.note or 'nothing was measured for it.'}")
    return Section(id=id, title=title, tables=tuple(tables), missing=tuple(dict.fromkeys(missing)))


def _with_figures(section: Section, study: Study, entries: Sequence[FigureEntry]) -> Section:
    pictures = tuple(picture(study, entry) for entry in entries)
    return Section(
        id=section.id,
        title=section.title,
        tables=section.tables,
        pictures=tuple(p for p in pictures if not p.missing),
        missing=(*section.missing, *(f"{p.title}: {p.missing}" for p in pictures if p.missing)),
    )


def picture(study: Study, entry: FigureEntry) -> Picture:
    """A figure with the name of the function that drew it; or why there is none."""
    id, title, draw, source = entry
    trace = f"{draw.__module__}.{draw.__name__} from {source}"
    try:
        svg, png = plot.render(lambda: draw(study), id)
    except AnalysisError as error:
        return Picture(id=id, title=title, trace=trace, missing=str(error))
    caption = (draw.__doc__ or "").strip().splitlines()[0].split(": ", 1)[-1]
    caption = caption[:1].upper() + caption[1:]
    return Picture(id=id, title=title, trace=trace, caption=caption, svg=svg, png=png)


def _summary(study: Study) -> str:
    trials = study.trials
    failed, valid = int((trials["status"] == "failed").sum()), int(trials["valid"].fillna(False).sum())
    place = study.environment.chip or study.environment.machine
    return (
        f"{len(trials)} trials ({valid} valid, {failed} failed) of {trials['target'].nunique()} targets in "
        f"{trials['suite'].nunique()} suites, on {place} ({study.environment.backend or 'backend not known'})."
    )


def _traces(sections: Sequence[Section]) -> tuple[Trace, ...]:
    traces = [Trace(what="The first line", how="answer.first_line of answer.advise over metrics.speedups(by workload)")]
    for section in sections:
        for table in section.tables:
            columns = "; ".join(f"{head.label}: {head.trace}" for head in table.heads if head.trace)
            traces.append(Trace(what=table.title, how=f"{table.trace}. {columns}"))
        traces += [Trace(what=p.title, how=p.trace) for p in section.pictures]
    return tuple(traces)

"""Parts of a report as values: text, tables, figures, and what is missing for more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from mlsd.analysis.study.study import Study, attempt
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.report.render import plot
from mlsd.report.render.plot import Picture
from mlsd.report.render.table import Table

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


def of_tables(id: str, title: str, *makers: Callable[[], Table]) -> Section:
    """A section of the tables that can be made; a table without rows says its good news, or that it is missing."""
    tables, missing, news = [], [], []
    for make in makers:
        table, reason = attempt(make)
        if table is None:
            missing.append(reason)
        elif table.rows:
            tables.append(table)
        elif table.good_news:
            news.append(f"{table.title}: {table.good_news}")
        else:
            missing.append(f"{table.title}: {table.note or 'nothing was measured for it.'}")
    return Section(id=id, title=title, text=tuple(news), tables=tuple(tables), missing=tuple(dict.fromkeys(missing)))


def with_figures(section: Section, study: Study, entries: Sequence[FigureEntry]) -> Section:
    """The section with figures behind its tables; those that cannot be drawn are missing."""
    pictures = [picture(study, entry) for entry in entries]
    missing = (*section.missing, *(f"{p.title}: {p.missing}" for p in pictures if p.missing))
    return Section(
        id=section.id,
        title=section.title,
        text=section.text,
        tables=section.tables,
        pictures=tuple(p for p in pictures if not p.missing),
        missing=tuple(dict.fromkeys(missing)),
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

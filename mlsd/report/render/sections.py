"""Parts of a report as values: text, tables, figures, and what is missing for more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from matplotlib.figure import Figure

from mlsd.analysis.study.study import attempt
from mlsd.records import Record
from mlsd.report.render import plot
from mlsd.report.render.plot import Picture
from mlsd.report.render.table import Table

T = TypeVar("T")


class FigureEntry(NamedTuple):
    """A figure that a page may hold; the first line of `draw`'s docstring is its caption."""

    id: str
    title: str
    draw: Callable[[Any], Figure]
    source: str  # of its numbers
    of: Callable[[Any], Any] = lambda study: study  # what `draw` draws


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


def section(
    id: str,
    title: str,
    study: T,
    *makers: Callable[[T], Table],
    said: Sequence[str] = (),
    figures: Sequence[FigureEntry] = (),
) -> Section:
    """The tables that can be made and the figures that can be drawn; what cannot says why, each reason once.

    A table without rows says its good news, or that it is missing.
    """
    tables, missing, news = [], [], []
    for make in makers:
        table, reason = attempt(lambda make=make: make(study))  # type: ignore[misc]
        if table is None:
            missing.append(reason)
        elif table.rows:
            tables.append(table)
        elif table.good_news:
            news.append(f"{table.title}: {table.good_news}")
        else:
            missing.append(f"{table.title}: {table.note or 'nothing was measured for it.'}")
    pictures = [picture(study, entry) for entry in figures]
    missing += [f"{p.title}: {p.missing}" for p in pictures if p.missing and p.missing not in missing]
    return Section(
        id=id,
        title=title,
        text=(*said, *news),
        tables=tuple(tables),
        pictures=tuple(p for p in pictures if not p.missing),
        missing=tuple(dict.fromkeys(missing)),
    )


def picture(study: Any, entry: FigureEntry) -> Picture:
    """A figure with the name of the function that drew it; or why there is none."""
    draw, trace = entry.draw, f"{entry.draw.__module__}.{entry.draw.__name__} from {entry.source}"
    drawn, reason = attempt(lambda: plot.render(lambda: draw(entry.of(study)), entry.id))
    if drawn is None:
        return Picture(id=entry.id, title=entry.title, trace=trace, missing=reason)
    caption = (draw.__doc__ or "").strip().splitlines()[0].split(": ", 1)[-1]
    caption = caption[:1].upper() + caption[1:]
    return Picture(id=entry.id, title=entry.title, trace=trace, caption=caption, svg=drawn[0], png=drawn[1])

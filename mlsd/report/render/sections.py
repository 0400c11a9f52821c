"""Parts of a report as values: text, tables, figures, and what is missing for more."""

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
    of: Callable[[Any], Any] = lambda study: study  # what `draw` draws
    narrow: Callable[[Any], Figure] | None = None  # the same for a narrow screen


class Section(Record, frozen=True, kw_only=True):
    """One part of a report."""

    id: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.text or self.tables or self.pictures)


class Advice(Record, frozen=True, kw_only=True):
    """What to set in other programs."""

    title: str
    lines: tuple[str, ...]


class Page(Record, frozen=True, kw_only=True):
    """A whole report: its first screen, what disturbs that answer, and the rest."""

    title: str
    verdict: str  # of the study's claims; empty where the database holds none of its suites
    scoreboard: Table | None
    next: str | None  # the command that decides more of them
    next_time: str  # about how long it measures, in words; empty: not known
    answer: str
    chart: Picture
    advice: tuple[Advice, ...] = ()
    disturbed: tuple[str, ...] = ()  # trials that must not be used, and what they would have claimed
    summary: str
    notes: tuple[str, ...]
    sections: tuple[Section, ...]
    written: str  # by which version, when

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(p for p in (self.chart, *(p for s in self.sections for p in s.pictures)) if not p.missing)

    @property
    def missing(self) -> dict[str, tuple[str, ...]]:
        """By part of the page what the data cannot show."""
        missing: dict[str, tuple[str, ...]] = {self.chart.title: (self.chart.missing,)} if self.chart.missing else {}
        for part in self.sections:
            missing |= {part.title if part.empty else f"{part.title} (in part)": part.missing} if part.missing else {}
        return missing


def section(
    id: str,
    title: str,
    study: T,
    *makers: Callable[[T], Table],
    text: Sequence[str] = (),
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
        text=(*text, *news),
        tables=tuple(tables),
        pictures=tuple(p for p in pictures if not p.missing),
        missing=tuple(dict.fromkeys(missing)),
    )


def picture(study: Any, entry: FigureEntry) -> Picture:
    """A figure, or why there is none."""
    draw = entry.draw
    drawn, reason = attempt(lambda: plot.render(lambda: draw(entry.of(study)), entry.id))
    if drawn is None:
        return Picture(id=entry.id, title=entry.title, missing=reason)
    narrow = entry.narrow
    small = None if narrow is None else plot.render(lambda: narrow(entry.of(study)), f"{entry.id}-narrow")
    caption = (draw.__doc__ or "").strip().splitlines()[0]
    return Picture(id=entry.id, title=entry.title, caption=caption, svg=drawn, narrow=small)

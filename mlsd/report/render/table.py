"""Tables as values: text to show, a key to sort by, and what each column means. No markup."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from mlsd.records import Record
from mlsd.stats import Interval

T = TypeVar("T")
U = TypeVar("U")
Tone = Literal["", "good", "bad", "caution", "quiet"]


class Head(Record, frozen=True, kw_only=True):
    """A column."""

    label: str
    unit: str = ""  # of its numbers, where the cells do not carry it
    trace: str = ""  # the function, column or source of its numbers
    numeric: bool = True
    detail: bool = False  # left out where a terminal is too narrow for every column

    @property
    def shown(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label


class Cell(Record, frozen=True, kw_only=True):
    """One entry; `sort` None sorts last."""

    text: str
    sort: float | str | None = None
    tone: Tone = ""
    note: str = ""  # more than fits, for a tooltip


class Table(Record, frozen=True, kw_only=True):
    """A table of a report or of a command."""

    title: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    id: str = ""  # its anchor on a page
    note: str = ""
    good_news: str = ""  # what it means when there is no row, where that is not for lack of data
    interactive: bool = False  # sortable and filterable

    @property
    def remark(self) -> str:
        """The line under it."""
        return self.note if self.rows else self.good_news or self.note


Column = tuple[Head, Callable[[T], Cell]]  # of a table whose rows show one T each


def table(title: str, rows: Iterable[T], *columns: Column[T], **about: Any) -> Table:
    """A table of one row for each of `rows`; `about` are the other fields of `Table`."""
    made = tuple(tuple(cell(row) for _, cell in columns) for row in rows)
    return Table(title=title, heads=tuple(head for head, _ in columns), rows=made, **about)


def words(label: str, value: Callable[[T], object], trace: str = "", *, detail: bool = False) -> Column[T]:
    """A column of words, or of cells; a narrow terminal leaves out what is a `detail`."""
    return Head(label=label, trace=trace, numeric=False, detail=detail), lambda row: _cell(value(row))


def numbers(
    label: str, value: Callable[[T], Cell | int | None], trace: str = "", unit: str = "", *, detail: bool = False
) -> Column[T]:
    """A column of whole numbers, or of cells that hold another number."""
    return Head(label=label, trace=trace, unit=unit, detail=detail), lambda row: _cell(value(row))


def through(of: Callable[[T], U | None], columns: Iterable[Column[U]]) -> tuple[Column[T], ...]:
    """Columns for rows that hold what these columns show, or hold nothing."""

    def within(cell: Callable[[U], Cell]) -> Callable[[T], Cell]:
        return lambda row: Cell(text="-") if (found := of(row)) is None else cell(found)

    return tuple((head, within(cell)) for head, cell in columns)


def _cell(value: object) -> Cell:
    if isinstance(value, Cell):
        return value
    return number(value, 0) if isinstance(value, int) and not isinstance(value, bool) else text(value)


def text(value: object, tone: Tone = "", note: str = "") -> Cell:
    """A cell of words; nothing for None."""
    shown = "-" if value is None else str(value)
    return Cell(text=shown, sort=None if value is None else shown.lower(), tone=tone, note=note)


def number(value: float | int | None, digits: int = 2, unit: str = "", note: str = "") -> Cell:
    """A cell of one number; a dash where it was not measured."""
    if value is None or not math.isfinite(value):
        return Cell(text="-", note=note)
    shown = f"{value:,.{digits}f}".replace(",", "\u202f")
    return Cell(text=f"{shown}{unit}", sort=float(value), note=note)


def percent(fraction: float | None, digits: int = 1) -> Cell:
    """A fraction as per cent."""
    return number(None if fraction is None else 100 * fraction, digits, " %")


def interval(estimate: Interval | None, digits: int = 2, unit: str = "", tone: Tone = "") -> Cell:
    """An estimate with its 95 % interval."""
    if estimate is None:
        return Cell(text="-")
    shown = significant(estimate.value, digits) + unit
    if estimate.low is not None and estimate.high is not None:
        shown += f" [{significant(estimate.low, digits)}, {significant(estimate.high, digits)}]"
    return Cell(text=shown, sort=estimate.value, tone=tone, note=f"n = {estimate.n}")


def significant(value: float, digits: int = 2) -> str:
    """Fixed digits where that shows something, three significant digits elsewhere."""
    if not math.isfinite(value):
        return "unbounded"
    return f"{value:.{digits}f}" if value == 0 or 10**-digits * 5 <= abs(value) < 1e5 else f"{value:.3g}"

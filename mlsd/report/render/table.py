"""Tables as values: text to show, a key to sort by, and what each column means. No markup."""

import math
import re
from collections.abc import Iterable
from typing import Any, Literal

from mlsd.columns import Column
from mlsd.records import Record
from mlsd.stats import Interval
from mlsd.units import NS_PER_MS, format_bytes

Tone = Literal["", "good", "bad", "caution", "quiet"]


class Head(Record, frozen=True, kw_only=True):
    """A column."""

    label: str
    trace: str = ""  # the function, column or source of its numbers
    numeric: bool = True
    detail: bool = False  # left out where a terminal is too narrow for every column


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


def table(title: str, rows: Iterable[Any], *columns: Column, **about: Any) -> Table:
    """A table of one row for each of `rows`; `about` are the other fields of `Table`."""
    heads = (Head(label=c.label, trace=c.meaning, numeric=c.numeric, detail=c.detail) for c in columns)
    cells = tuple(tuple(formatted(c.get(row), c.format) for c in columns) for row in rows)
    return Table(title=title, heads=tuple(heads), rows=cells, **about)


_TERMS = {"gamma": "gamma: the draft length, in tokens", "MGL": "MGL: tokens per round, the target's own included"}


def explain_terms(labels: Iterable[str] = _TERMS) -> str:
    """What gamma and MGL are, where these labels have them."""
    terms = "; ".join(_TERMS[label] for label in _TERMS if label in labels)
    return terms and f"{terms}."


_DIGITS = re.compile(r"\[?(\d)\]?(.*)")


def formatted(value: Any, format: str) -> Cell:
    """A value as the format of its column says; a cell as it is."""
    if isinstance(value, Cell):
        return value
    if value is None or (format == "n+" and not value):
        return text(None)
    if isinstance(value, bool):
        return text("yes" if value else "no")
    if format in ("n", "n+"):
        return number(value, 0)
    if format == "ms":
        return number(value / NS_PER_MS, 3)
    if format == "bytes":
        return Cell(text=format_bytes(round(value)), sort=float(value))
    found = _DIGITS.match(format)
    if found is None:
        return text(value)
    digits, unit = int(found[1]), found[2]
    if isinstance(value, Interval):
        return interval(value, digits, unit)
    return percent(value, digits) if unit == "%" else number(value, digits, unit)


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


def interval(
    estimate: Interval | None, digits: int = 2, unit: str = "", tone: Tone = "", *, units: str = "values"
) -> Cell:
    """An estimate with its 95 % interval; of two `units` that give no width, or one beyond tenfold, their number."""
    if estimate is None:
        return Cell(text="-")
    shown = significant(estimate.value, digits) + unit
    if estimate.low is not None and estimate.high is not None:
        vague = estimate.n == 2 and (estimate.low == estimate.high or 0 < 10 * estimate.low < estimate.high)
        ends = f"[{significant(estimate.low, digits)}, {significant(estimate.high, digits)}]"
        shown += f" (2 {units})" if vague else f" {ends}"
    return Cell(text=shown, sort=estimate.value, tone=tone, note=f"n = {estimate.n}")


def significant(value: float, digits: int = 2) -> str:
    """Fixed digits where that shows something, three significant digits elsewhere."""
    if not math.isfinite(value):
        return "unbounded"
    return f"{value:.{digits}f}" if value == 0 or 10**-digits * 5 <= abs(value) < 1e5 else f"{value:.3g}"

"""Tables as values: a choice of rows and columns, what each cell shows, what it sorts by, and its tone. No markup."""

import math
import re
from collections.abc import Iterable
from typing import Any, Literal

from mlsd.columns import Column
from mlsd.records import Record
from mlsd.stats import Interval
from mlsd.units import NS_PER_MS, format_bytes

Tone = Literal["", "good", "bad", "caution", "quiet"]
_WORD_ENDS = re.compile(r": | by | within |, ")
_BY_TONE: dict[Tone, str] = {  # with which a cell begins
    "good": "faster; holds here; predicts best; as good within noise, simpler; fits; YES",
    "bad": "slower; does not hold here; refuted; impossible; diverged; failed; invalid; not_judged; INVALID; NO; "
    "not valid; does not fit; none suffices",
    "caution": "not decided yet; suspicious; near_tie; hot; disturbed; tight; raise the limit; random weights",
    "quiet": "not measured; not timed; a control; could not be read; same; unknown; not judged; not known",
}
TONES: dict[str, Tone] = {text: tone for tone, texts in _BY_TONE.items() for text in texts.split("; ")}


class Cell(Record, frozen=True, kw_only=True):
    """One entry; `sort` None sorts last."""

    text: str
    sort: float | str | None = None
    tone: Tone = ""


class Table(Record, frozen=True, kw_only=True):
    """A table of a report or of a command."""

    title: str
    heads: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    id: str = ""  # its anchor on a page
    note: str = ""
    good_news: str = ""  # what it means when there is no row, where that is not for lack of data

    @property
    def interactive(self) -> bool:
        """Sortable and filterable on a page."""
        return len(self.rows) > 20

    @property
    def remark(self) -> str:
        """The line under it."""
        return self.note if self.rows else self.good_news or self.note


def table(title: str, rows: Iterable[Any], *columns: Column, **about: Any) -> Table:
    """A table of one row for each of `rows`; `about` are the other fields of `Table`."""
    cells = tuple(tuple(formatted(c.get(row), c.format) for c in columns) for row in rows)
    return Table(title=title, heads=columns, rows=cells, **about)


_TERMS = {"gamma": "gamma: the draft length, in tokens", "MGL": "MGL: tokens per round, the target's own included"}


def explain_terms(labels: Iterable[str] = _TERMS) -> str:
    """What gamma and MGL are, where these labels have them."""
    terms = "; ".join(_TERMS[label] for label in _TERMS if label in labels)
    return terms and f"{terms}."


_DIGITS = re.compile(r"(\[)?(\d)\]?(\.\.)?(.*)")


def formatted(value: Any, format: str = "") -> Cell:
    """A value as the format of its column says; words, and a cell, as they are; a dash where nothing was measured."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, tuple | list):
        value = len(value) if format == "n" else ", ".join(map(str, value))
    if value is None or value == "" or (format == "n+" and not value):
        return Cell(text="-")
    if isinstance(value, bool):
        return Cell(text="yes" if value else "no", sort="yes" if value else "no")
    match = _DIGITS.match(format)
    if isinstance(value, str) or (match is None and format not in ("n", "n+", "ms", "bytes")):
        return Cell(text=str(value), sort=str(value).lower(), tone=TONES.get(_WORD_ENDS.split(str(value))[0], ""))
    if format == "bytes":
        return Cell(text=format_bytes(round(value)), sort=float(value))
    if match is None:
        return _number(value / NS_PER_MS, 3) if format == "ms" else _number(value, 0)
    digits, ends, unit = int(match[2]), match[3], match[4]
    if not isinstance(value, Interval):
        if match[1]:
            return Cell(text=significant(value, digits) + unit, sort=float(value))
        scale, shown = {"%": (100, " %"), "e6": (1e-6, "")}.get(unit, (1, unit))
        return _number(scale * value, digits, shown)
    if not ends:
        return interval(value, digits, unit)
    if value.low is None or value.high is None:
        return Cell(text="-")
    digits = value.digits(digits)
    return Cell(text=f"{value.low:.{digits}f} .. {value.high:.{digits}f}", sort=value.low)


def _number(value: float, digits: int, unit: str = "") -> Cell:
    if not math.isfinite(value):
        return Cell(text="-")
    return Cell(text=f"{value:,.{digits}f}".replace(",", "\u202f") + unit, sort=float(value))


def interval(
    estimate: Interval | None,
    digits: int = 2,
    unit: str = "",
    tone: Tone = "",
    *,
    units: str = "values",
    against: float | None = None,
) -> Cell:
    """An estimate with its 95 % interval; of two `units` that give no width, or one beyond tenfold, their number.

    No end is rounded onto what it is held `against`, of a ratio 1.
    """
    if estimate is None:
        return Cell(text="-")
    if against is not None or unit == "x":
        digits = estimate.digits(digits, 1.0 if against is None else against)
    shown = significant(estimate.value, digits) + unit
    if estimate.low is not None and estimate.high is not None:
        vague = estimate.n == 2 and (estimate.low == estimate.high or 0 < 10 * estimate.low < estimate.high)
        ends = f"[{significant(estimate.low, digits)}, {significant(estimate.high, digits)}]"
        shown += f" (2 {units})" if vague else f" {ends}"
    return Cell(text=shown, sort=estimate.value, tone=tone)


def significant(value: float, digits: int = 2) -> str:
    """Fixed digits where that shows something, three significant digits elsewhere."""
    if not math.isfinite(value):
        return "unbounded"
    return f"{value:.{digits}f}" if value == 0 or 10**-digits * 5 <= abs(value) < 1e5 else f"{value:.3g}"

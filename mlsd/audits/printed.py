"""Numbers as they stand in print: a value together with the interval that rounds to it.

An audit must not blame a row for its rounding, so every bound is taken at the end of the interval that favours the row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation

from mlsd.records import Record

_NOTHING = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "?", "n/a", "na", "n.a.", "none", "null", "auto"}
_UNIT = re.compile(
    r"\s*(x|\N{MULTIPLICATION SIGN}|tok(ens?)?\s*/\s*s(ec)?|tok(ens?)?|t/s|tps|ms(/tok(en)?)?|gb/s|gb|s)$",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(
    r"(?<=\d)[ \u00a0\u2009\u202f](?=\d{3}\b)"
    r"|(?<=[1-9]),(?=\d{3}\b)|(?<=[1-9]\d),(?=\d{3}\b)|(?<=[1-9]\d\d),(?=\d{3}\b)"
)
_SIGNIFICANT = 12  # a binary float written out (0.0197999999999999) is read as the decimal it came from


class Printed(Record, frozen=True, kw_only=True):
    """A printed number: every true value in low..high prints as `value`."""

    value: float
    low: float
    high: float

    def each(self, change: Callable[[float], float]) -> Printed:
        """The same number after a change that keeps the order of numbers."""
        return Printed(value=change(self.value), low=change(self.low), high=change(self.high))

    def scaled(self, factor: float) -> Printed:
        """The same number in another unit; `factor` is positive."""
        return self.each(lambda value: value * factor)

    def over(self, other: Printed) -> Printed:
        """The ratio to a number above 0."""
        return Printed(value=self.value / other.value, low=self.low / other.high, high=self.high / other.low)


def exact(value: float) -> Printed:
    """A number that was not rounded for print."""
    return Printed(value=value, low=value, high=value)


def is_blank(text: str) -> bool:
    """Whether a cell is empty or holds one of the words for not measured: ``-``, ``n/a``, ``auto``."""
    return text.strip().lower() in _NOTHING


def in_percent(cells: Iterable[str]) -> bool:
    """Whether a column of rates is in per cent: some are above 1, and none lies between 0 and 1."""
    values = [value for text in cells if "%" not in text and (value := value_of(text)) is not None]
    return any(value > 1 for value in values) and not any(0 < value < 1 for value in values)


def value_of(text: str) -> float | None:
    """The number in a cell, None where there is none."""
    try:
        return None if is_blank(text) else parse_printed(text).value
    except ValueError:
        return None


def parse_printed(text: str) -> Printed:
    """Read a printed number: ``63.4`` means 63.35 to 63.45, ``<4`` 0 to 4, ``~16`` 15 to 17, ``0.5-0.9`` 0.45 to 0.95.

    A unit after it (``1.5x``, ``30 tok/s``), a deviation (``30 ± 2``) and marks for bold are passed over; ``55 %`` is
    0.55. Raises ValueError when it is not a finite number.
    """
    stripped = text.strip().strip("*_`").strip().partition("\N{PLUS-MINUS SIGN}")[0].strip("* ")
    if stripped.endswith("%"):
        return parse_printed(stripped[:-1]).scaled(0.01)
    stripped = _UNIT.sub("", stripped).replace("\N{MINUS SIGN}", "-").replace("\N{EN DASH}", "-")
    stripped = _THOUSANDS.sub("", stripped)
    if stripped.count(",") == 1 and "." not in stripped:
        stripped = stripped.replace(",", ".")
    if stripped.startswith("<"):
        bound = float(_decimal(stripped[1:]))
        return Printed(value=bound, low=0.0, high=bound)
    first, dash, last = stripped.partition("-")
    if dash and first.strip() and not first.rstrip().endswith(("e", "E")):
        least, most = parse_printed(first), parse_printed(last)
        return Printed(value=(least.value + most.value) / 2, low=least.low, high=most.high)
    about = stripped.startswith(("~", "≈"))
    rounded = _shorten(_decimal(stripped[1:] if about else stripped))
    _, digits, exponent = rounded.as_tuple()
    unit = Decimal(1).scaleb(int(exponent))
    half = abs(rounded) * Decimal("1e-11") if len(digits) >= _SIGNIFICANT else unit if about else unit / 2
    low, high = float(rounded - half), float(rounded + half)
    return Printed(value=float(rounded), low=max(low, 0.0) if rounded >= 0 else low, high=high)


def _decimal(text: str) -> Decimal:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(f"{text.strip()[:20]!r} is not a number") from None
    if not (number.is_finite() and math.isfinite(number)):  # as a float, too
        raise ValueError(f"{text.strip()[:20]!r} is not a finite number")
    return number


def _shorten(number: Decimal) -> Decimal:
    """Drop the tail that a binary float leaves behind its decimal; other numbers stay as printed."""
    if len(number.as_tuple().digits) <= _SIGNIFICANT:
        return number
    short = Decimal(f"{number:.{_SIGNIFICANT - 1}e}")
    normal = short.normalize()
    return normal if len(normal.as_tuple().digits) < _SIGNIFICANT - 3 else short

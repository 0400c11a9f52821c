"""Numbers as they stand in print: a value together with the interval that rounds to it.

An audit must not blame a row for its rounding, so every bound is taken at the end of the interval that favours the row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
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
    digits: int  # significant digits in print, or 12 when it was written out in full

    def scaled(self, factor: float) -> Printed:
        """The same number in another unit; `factor` is positive."""
        return Printed(value=self.value * factor, low=self.low * factor, high=self.high * factor, digits=self.digits)

    def plus(self, term: float) -> Printed:
        return Printed(value=self.value + term, low=self.low + term, high=self.high + term, digits=self.digits)

    def at_most(self, bound: float) -> Printed:
        """The same number, known not to exceed a bound (an acceptance rate is at most 1)."""
        return Printed(
            value=min(self.value, bound), low=min(self.low, bound), high=min(self.high, bound), digits=self.digits
        )

    @property
    def inverse(self) -> Printed:
        """1 / the number: 50.0 tok/s as seconds a token."""
        return Printed(value=1 / self.value, low=1 / self.high, high=1 / self.low, digits=self.digits)


def exact(value: float) -> Printed:
    """A number that was not rounded for print."""
    return Printed(value=value, low=value, high=value, digits=_SIGNIFICANT)


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
        return Printed(value=bound, low=0.0, high=bound, digits=1)
    first, dash, last = stripped.partition("-")
    if dash and first.strip() and not first.rstrip().endswith(("e", "E")):
        least, most = parse_printed(first), parse_printed(last)
        middle = (least.value + most.value) / 2
        return Printed(value=middle, low=least.low, high=most.high, digits=min(least.digits, most.digits))
    about = stripped.startswith(("~", "≈"))
    number = _decimal(stripped[1:] if about else stripped)
    rounded = _shorten(number)
    exponent = rounded.as_tuple().exponent
    unit = Decimal(1).scaleb(int(exponent)) if isinstance(exponent, int) else Decimal(0)
    half = unit if about else unit / 2
    if len(rounded.as_tuple().digits) >= _SIGNIFICANT:
        half = abs(rounded) * Decimal("1e-11")
    low, high = float(rounded - half), float(rounded + half)
    if rounded >= 0:
        low = max(low, 0.0)
    return Printed(value=float(rounded), low=low, high=high, digits=len(rounded.as_tuple().digits))


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

"""A column, for all that shows it: terminal, page, Markdown, CSV, frames, --json with its schema, docs/data.md.

A column is declared once, in one line: its name with the unit in it, its format, what it means, what fills it. What was
not measured is missing, never 0. Registries: `trials.fields` (arms), `formats.tables` (trials), `analysis.frames`.
"""

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

Get = Callable[[Any], Any]  # of a row
# As pandas calls the types of columns.
Kind = Literal["string", "Int64", "int64", "float64", "boolean", "bool", "object"]
_KINDS: dict[str, Kind] = {
    "": "string", "n": "Int64", "n+": "Int64", "bytes": "Int64", "ms": "Int64", "flag": "boolean", "object": "object"
}  # fmt: skip


class Column(NamedTuple):
    """A column of tables and frames, and a key of an object.

    `format`: "" text, several in a row; "n" a whole number, or of how many, "n+" one above 0; "bytes"; "ms" of
    nanoseconds; "flag"; "object" (in no table); "1 ms" a number of one digit with its unit, "2%" of a fraction in per
    cent, "2e6" in millions; "[2]x" a value with its interval, in frames three columns, "2.." the interval alone.
    """

    name: str
    format: str
    meaning: str
    get: Get
    label: str  # in tables
    detail: bool = False  # left out where a terminal is too narrow for every column
    kind: Kind | None = None  # where the format does not say it
    level: int = 95  # of an interval, in per cent

    @property
    def dtype(self) -> Kind:
        return self.kind or _KINDS.get(self.format, "float64")

    @property
    def numeric(self) -> bool:
        return self.dtype in ("Int64", "int64", "float64")


def column(
    name: str, format: str = "", meaning: str = "", of: str | Get | None = None, label: str | None = None, **more: Any
) -> Column:
    """A column filled by `of`: a function of a row, or a path in it, as ``case.target.id``; without one by its name."""
    get = of if callable(of) else path(of or name)
    return Column(name, format, meaning, get, name.replace("_", " ") if label is None else label, **more)


def path(names: str) -> Get:
    """What reads fields of fields, values of dicts, items by number, and None where one on the path is None."""
    parts, fields = names.split("."), operator.attrgetter(names)

    def read(row: Any) -> Any:
        try:
            return fields(row)  # of thousands of rows: no part of most paths is a dict, a number or None
        except AttributeError:
            pass
        for part in parts:
            if row is None:
                return None
            row = row.get(part) if isinstance(row, dict) else row[int(part)] if part.isdigit() else getattr(row, part)
        return row

    return read


def flat(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Each interval as three columns: its value and its ends."""
    return tuple(part for each in columns for part in (_ends(each) if each.format.startswith("[") else (each,)))


def _ends(of: Column) -> tuple[Column, ...]:
    def end(which: str) -> Get:
        return lambda row: None if (interval := of.get(row)) is None else getattr(interval, which)

    meaning = f"end of its {of.level} % interval"
    sides = (column(f"{of.name}_{side}", "2", f"{side} {meaning}", end(side)) for side in ("low", "high"))
    return column(of.name, "2", of.meaning, end("value"), of.label), *sides


def chosen(columns: Iterable[Column], names: str, **labels: str) -> tuple[Column, ...]:
    """Those of these names, in this order; `labels` are other labels than theirs, by name."""
    by_name = {each.name: each for each in columns}
    return tuple(by_name[name]._replace(label=labels.get(name, by_name[name].label)) for name in names.split())


def inside(of: str | Get, columns: Iterable[Column]) -> tuple[Column, ...]:
    """Columns for rows that hold what these columns are of, or hold nothing."""
    outer = path(of) if isinstance(of, str) else of

    def within(get: Get) -> Get:
        return lambda row: None if (held := outer(row)) is None else get(held)

    return tuple(each._replace(get=within(each.get)) for each in columns)


def row_of(row: Any, columns: Iterable[Column]) -> dict[str, Any]:
    """One row by its columns' names."""
    return {each.name: each.get(row) for each in flat(columns)}


_SPELLED = re.compile(r"(?P<label>[^:=*]*)(:(?P<format>[^=*]+))?(=(?P<path>[^*]+))?(?P<detail>\*)?")


def columns(text: str) -> tuple[Column, ...]:
    """Columns that need no meaning, apart by semicolons: each ``label:format=path``; a star behind it: a detail."""
    parts = (match.groupdict() for spelled in text.split(";") if (match := _SPELLED.fullmatch(spelled.strip())))
    return tuple(
        column(p["label"], p["format"] or "", "", p["path"], p["label"], detail=bool(p["detail"])) for p in parts
    )

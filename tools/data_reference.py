"""Writes the tables of docs/data.md: columns, warnings, statuses. Run: python -m tools.data_reference."""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

from mlsd.analysis import frames
from mlsd.columns import Column
from mlsd.measure.parent.checks import WARNINGS
from mlsd.records import Status
from mlsd.report.tables import arms

PAGE = Path(__file__).parent.parent / "docs" / "data.md"
_TYPES = {
    "string": "text", "Int64": "whole number", "int64": "whole number", "float64": "number", "boolean": "yes or no",
    "bool": "yes or no", "object": "by name",
}  # fmt: skip


def tables() -> dict[str, str]:
    """Each generated table by the name of its place in the page."""
    statuses = comments(Status)
    return {
        "shown": _rows(("column", "meaning"), arms.meanings().items()),
        "warnings": _rows(("code", "meaning"), WARNINGS.items()),
        "statuses": _rows(("status", "meaning"), ((one.value, statuses[one.name]) for one in Status)),
        **{name: _columns(columns) for name, columns in frames.FRAMES.items()},
    }


def comments(kind: type) -> dict[str, str]:
    """The comments behind the fields of a class."""
    return dict(re.findall(r"^    (\w+)\b.*?  # (.+)$", inspect.getsource(kind), flags=re.MULTILINE))


def _columns(columns: Iterable[Column]) -> str:
    shown = {one.name: one.label for one in columns if one.label != one.name.replace("_", " ")}
    rows = (
        (
            one.name,
            f"{_TYPES[one.dtype]} | {one.meaning}" + (f"; shown as {shown[one.name]}" if one.name in shown else ""),
        )
        for one in columns
    )
    return _rows(("column", "type | meaning"), rows)


def _rows(heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    head = f"| {' | '.join(heads)} |"
    rule = "|" + "---|" * (head.count("|") - 1)
    return "\n".join((head, rule, *(f"| `{name}` | {meaning} |" for name, meaning in rows)))


def filled(text: str) -> str:
    """The page with its tables as the code has them now."""
    for name, table in tables().items():
        head, begin, rest = text.partition(f"<!-- table: {name} -->\n")
        _, end, tail = rest.partition("<!-- end of table -->")
        assert begin and end, f"{PAGE.name} has no place for {name}"
        text = f"{head}{begin}{table}\n{end}{tail}"
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

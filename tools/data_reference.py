"""Writes the tables of docs/data.md, the columns of the frames. Run: python -m tools.data_reference."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mlsd.analysis.results import frames

PAGE = Path(__file__).parent.parent / "docs" / "data.md"
_TYPES = {"string": "text", "Int64": "whole number", "float64": "number", "boolean": "yes or no"}


def tables() -> dict[str, str]:
    """Each generated table by the name of its place in the page."""
    return {"trials": _columns(frames.TRIALS), "outcomes": _columns(frames.OUTCOMES)}


def _columns(columns: Iterable[frames.Column]) -> str:
    rows = [f"| `{one.name}` | {_TYPES[one.dtype]} | {one.meaning} |" for one in columns]
    return "\n".join(("| column | type | meaning |", "|---|---|---|", *rows))


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

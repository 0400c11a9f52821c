"""How commands print: tables and progress for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import click
import msgspec


def print_json(value: Any) -> None:
    """One JSON value on standard output; records become objects, not-a-number becomes null."""
    click.echo(json.dumps(_finite(msgspec.to_builtins(value)), ensure_ascii=False, indent=2))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def table(title: str, columns: list[str], *, left: int = 1) -> Any:
    """An empty rich table: the first `left` columns left-aligned, numbers right-aligned."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i < left else "right")
    return made


def print_table(made: Any) -> None:
    """Print a rich table; wide enough not to wrap when the output is piped."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False).print(made)


def note(text: str) -> None:
    """A line on standard error, out of the way of piped output."""
    click.echo(text, err=True)

"""How commands print: tables and progress for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def byte_progress(label: str, total_bytes: int | None = None) -> Iterator[Callable[[str, int], None] | None]:
    """A progress line of bytes written, on standard error and only on a terminal; yields its callback, else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total_bytes)
        yield lambda name, n_bytes: bar.update(task, advance=n_bytes, description=f"{label} {name}")

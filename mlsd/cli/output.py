"""How commands print: tables and progress for people, one JSON object for programs."""

from __future__ import annotations

import contextvars
import json
import math
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from mlsd.redact import redacted, secrets
from mlsd.report.render.terminal import COLORS, plain, steers
from mlsd.units import format_bytes, format_duration

if TYPE_CHECKING:
    from mlsd.hashes import OnBytes
    from mlsd.report.render.table import Table, Tone


_STILL_S, _SIGN_S = 10.0, 9.5  # between signs of life where nothing can move, and between any two of them

verbosity: ContextVar[str | None] = ContextVar("verbosity", default="normal")  # or quiet, or verbose
every_column: ContextVar[bool] = ContextVar("every_column", default=False)  # of a table, however narrow the terminal


def print_json(value: Any) -> None:
    """One JSON value on standard output; records become objects, not-a-number becomes null.

    What steers a terminal is escaped: a program reads the same text, and a person who looks is safe.
    """
    data = msgspec.json.encode(value)
    if secrets():
        data = msgspec.json.encode(redacted(msgspec.json.decode(data)))
    text = msgspec.json.format(data, indent=2).decode()
    click.echo(_UNUSUAL.sub(lambda match: json.dumps(match[0])[1:-1] if steers(match[0]) else match[0], text))


_UNUSUAL = re.compile(r"[^\n -~]")


def print_help(ctx: click.Context) -> None:
    """Print the help of a command as click lays it out."""
    click.echo(ctx.get_help(), color=ctx.color)


def print_table(table: Table) -> None:
    """Print a table: in colours and no wider than the terminal; whole where the output is piped, or with --wide."""
    from mlsd.report.render import terminal

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    click.echo(terminal.render(table, width=columns() or terminal.PIPED, color=color), nl=False, color=color)


def columns() -> int | None:
    """How wide a table may be; None where everything is shown: piped, or with --wide."""
    return None if every_column.get() else _columns(sys.stdout)


def _columns(stream: TextIO) -> int | None:
    return shutil.get_terminal_size().columns if stream.isatty() else None


_WHOLE = re.compile(r"`[^`]*`|((?<=: )|(?<=\$ )|^ *)(mlsd|/usr/bin/env) .*$")  # a command, which somebody may copy


def folded(text: str, columns: int | None) -> str:
    """Text whose lines break at words; a command stays in one line, which a terminal folds without a line break."""
    if columns is None:
        return text
    lines = []
    for line in text.split("\n"):
        unbroken = _WHOLE.sub(lambda match: match[0].replace(" ", "\0"), line)
        indent = " " * (len(line) - len(line.lstrip()))
        wrap = textwrap.TextWrapper(
            columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, expand_tabs=False
        )
        lines += wrap.wrap(unbroken) or [""]
    return "\n".join(lines).replace("\0", " ")


def say(*parts: str | tuple[str, Tone]) -> None:
    """A line on standard output; a part may be text with a tone, whose colour only a terminal shows."""
    in_color = "NO_COLOR" not in os.environ
    texts = [(plain(part), None) if isinstance(part, str) else (plain(part[0]), COLORS[part[1]]) for part in parts]
    rest, shown = folded("".join(text for text, _ in texts), _columns(sys.stdout)), ""
    for text, color in texts:
        part = text if rest.startswith(text) and (text, color) != texts[-1] else rest
        shown, rest = shown + (click.style(part, fg=color) if color and in_color and part else part), rest[len(part) :]
    click.echo(shown)


def complain(text: str) -> None:
    """A line on standard error that nothing leaves out: an error."""
    click.echo(folded(plain(text), _columns(sys.stderr)), err=True)


def note(text: str) -> None:
    """A line on standard error, out of the way of piped output; --quiet leaves it out."""
    if verbosity.get() != "quiet":
        complain(text)


_sign = {"began_s": time.monotonic(), "last_s": -math.inf}


def sign_of_life(doing: str) -> None:
    """What goes on now, in one line every ten seconds, from whichever part of the program it comes."""
    now_s = time.monotonic()
    if now_s - _sign["last_s"] >= _SIGN_S:
        _sign["last_s"] = now_s
        note(f"  {doing} ({now_s - _sign['began_s']:.0f} s)")


def shows_progress() -> bool:
    """Whether bars are shown: standard error is a terminal, and --quiet was not given."""
    return sys.stderr.isatty() and verbosity.get() != "quiet"


def choose_verbosity(ctx: click.Context, parameter: click.Parameter, chosen: bool) -> None:
    """The callback of -q and -v."""
    if chosen:
        verbosity.set(parameter.name)


def choose_columns(ctx: click.Context, parameter: click.Parameter, chosen: bool) -> None:
    """The callback of --wide."""
    if chosen:
        every_column.set(True)


@contextmanager
def working(label: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done while it lasts: a moving line on a terminal, else one every ten seconds.

    Yields what takes the latest step.
    """
    if not shows_progress():
        note(f"{label}...")
        over, steps = threading.Event(), list[str]()
        run = contextvars.copy_context().run  # -q holds in the thread too
        threading.Thread(target=run, args=(_show_last, label, steps, over), daemon=True).start()
        try:
            yield steps.append
        finally:
            over.set()
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as line:
        task = line.add_task(plain(label))
        yield lambda step: line.update(task, description=plain(f"{label}: {step}"))


def _show_last(label: str, steps: Sequence[str], over: threading.Event) -> None:
    while not over.wait(_STILL_S):
        sign_of_life(": ".join((label, *steps[-1:])))


@contextmanager
def byte_counter() -> Iterator[Callable[[str], OnBytes]]:
    """Yields what begins a step and gives its counter of bytes: a moving line on a terminal, else now and then one."""
    moves = shows_progress()
    with working("Files") if moves else nullcontext(sign_of_life) as show:

        def begin(step: str) -> OnBytes:
            began_s = time.monotonic()
            (show if moves else note)(step)

            def count(done: int, total: int | None) -> None:
                spent_s = time.monotonic() - began_s
                left = f", {format_duration(spent_s * (total - done) / done)} left" if total and done else ""
                if moves or spent_s >= _STILL_S:
                    show(f"{step}: {format_bytes(done)} of {format_bytes(total)}{left}")

            return count

        yield begin

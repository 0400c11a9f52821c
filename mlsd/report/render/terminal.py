"""A table as text for a terminal, and text of strangers made safe for one."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlsd.redact import redact
from mlsd.report.render.table import Head, Table, Tone

if TYPE_CHECKING:
    from rich.table import Table as Grid
    from rich.text import Text

PIPED = 4000  # columns when nobody looks: no line is wrapped or cut
# What stays longest where a terminal is narrow, whatever the table; the first column never leaves.
WORTH = ("arm", "setting", "speedup", "decision", "gamma", "tok/s", "95 % CI", "verdict", "prompt", "acceptance", "MGL")
_LONGEST_WORD = 24  # of a sentence in a cell; a longer one, a path for instance, may go on in the next line
_STYLES: dict[Tone, str] = {"": "", "good": "green", "bad": "red", "doubt": "yellow", "quiet": "bright_black"}


def render(table: Table, *, width: int = PIPED, color: bool = False) -> str:
    """The table with title, note and ruled head; what steers a terminal is shown, not sent.

    Where `width` is too small for every column, those of detail leave first, from the right, then the others, those
    named in `WORTH` last; a line names them. No value is ever cut: where one column alone is too wide its words fold.
    """
    from rich.console import Console
    from rich.measure import Measurement

    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        force_jupyter=False,  # a notebook's kernel shows what is returned, not what is printed to a text
        no_color=not color,
        highlight=False,
        emoji=False,
    )
    if table.title:
        console.print(_text(table.title), style="italic" if color else "")

    def fits(columns: Sequence[int]) -> bool:
        unlimited = console.options.update(max_width=PIPED)
        return Measurement.get(console, unlimited, _grid(table, columns)).minimum <= width

    leaving = sorted(range(1, len(table.heads)), key=lambda i: _worth(table.heads[i], i))
    shown = list(range(len(table.heads)))
    while leaving and not fits(shown):
        shown.remove(leaving.pop(0))
    console.print(_grid(table, shown, folds=not fits(shown)))
    said = table.note if table.rows else table.good_news or table.note
    left = [table.heads[i].label for i in range(len(table.heads)) if i not in shown]
    more = f"Not shown at this width: {', '.join(left)} (--wide shows every column)." if left else ""
    for line in filter(None, (said, more)):
        console.print(_text(line))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _worth(head: Head, place: int) -> tuple[bool, int, int]:
    named = WORTH.index(head.label) if head.label in WORTH else len(WORTH)
    return not head.detail, -named, -place


def _grid(table: Table, columns: Sequence[int], *, folds: bool = False) -> Grid:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i in columns:
        head = table.heads[i]
        cells = [_text(head.shown), *(_text(row[i].text) for row in table.rows)]
        wraps = not head.numeric and any(" " in cell.plain for cell in cells[1:])  # a number or an id is never broken
        parts = [part for cell in cells for part in (cell.split() if wraps else (cell,))]
        longest = max((part.cell_len for part in parts), default=0)
        grid.add_column(
            cells[0],
            justify="right" if head.numeric else "left",
            no_wrap=not wraps and not folds,
            min_width=None if folds else min(longest, _LONGEST_WORD) if wraps else longest,
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(_text(row[i].text, row[i].tone) for i in columns))
    return grid


def _text(value: str, tone: Tone = "") -> Text:
    from rich.text import Text

    thin_space = "\u202f"  # between thousands: nice on a page, in the way of whoever copies a number
    return Text(plain(value.replace(thin_space, "")).replace("\n", " "), style=_STYLES[tone])


_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode's categories


def steers(char: str) -> bool:
    """Whether a character moves a terminal's cursor, its colours or its direction, and does not end a line."""
    return char != "\n" and unicodedata.category(char) in _STEERING


def plain(value: object) -> str:
    """Text of a file, a model or another program as it may be shown: without controls, turns of direction and secrets.

    Whatever mlsd prints goes through here, and so does the Markdown that it writes.
    """
    return "".join("\N{REPLACEMENT CHARACTER}" if steers(c) else c for c in redact(str(value)).expandtabs(1))

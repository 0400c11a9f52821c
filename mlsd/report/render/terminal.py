"""A table as text for a terminal, and text of strangers made safe for one."""

from __future__ import annotations

import io
import unicodedata
from typing import TYPE_CHECKING

from mlsd.report.render.table import Table, Tone

if TYPE_CHECKING:
    from rich.text import Text

PIPED = 4000  # columns when nobody looks: no line is wrapped or cut
_STYLES: dict[Tone, str] = {"": "", "good": "green", "bad": "red", "doubt": "yellow", "quiet": "bright_black"}


def render(table: Table, *, width: int = PIPED, color: bool = False) -> str:
    """The table with title, note and ruled head, no wider than `width`; what steers a terminal is shown, not sent."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in table.heads:
        grid.add_column(_text(head.shown), justify="right" if head.numeric else "left")
    for row in table.rows:
        grid.add_row(*(_text(cell.text, cell.tone) for cell in row))
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
    console.print(grid)
    said = table.note if table.rows else table.good_news or table.note
    if said:
        console.print(_text(said))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _text(value: str, tone: Tone = "") -> Text:
    from rich.text import Text

    thin_space = "\u202f"  # between thousands: nice on a page, in the way of whoever copies a number
    return Text(plain(value.replace(thin_space, "")).replace("\n", " "), style=_STYLES[tone])


_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode's categories


def plain(value: object) -> str:
    """Text of a file, a model or another program without what steers a terminal: controls, overrides of direction."""
    return "".join(
        c
        if c == "\n" or unicodedata.category(c) not in _STEERING
        else " "
        if c == "\t"
        else "\N{REPLACEMENT CHARACTER}"
        for c in str(value).expandtabs(1)
    )

"""A table as text for a terminal, and text of strangers made safe for one."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from mlsd.redact import redact
from mlsd.report.render.table import Head, Table, Tone

if TYPE_CHECKING:
    from rich.table import Table as Grid
    from rich.text import Text

PIPED = 4000  # columns when nobody looks: no line is wrapped or cut
# What stays longest where a terminal is narrow, whatever the table; the first column never leaves.
WORTH = (
    "arm", "setting", "speedup", "ratio", "decision", "gamma", "tok/s", "95 % CI", "verdict", "time", "prompt",
    "acceptance", "MGL", "model", "choice", "held-out error", "measured speedup", "corrected", "Eq. 2", "Eq. 1", "GB/s",
    "here", "printed",
)  # fmt: skip
_LONGEST_WORD = 24  # of a sentence in a cell; a longer one, a path for instance, may go on in the next line
_SENTENCE = 14  # the least width of a column of sentences
_GAP = 2  # between columns
_STYLES: dict[Tone, str] = {"": "", "good": "green", "bad": "red", "doubt": "yellow", "quiet": "bright_black"}


def render(table: Table, *, width: int = PIPED, color: bool = False) -> str:
    """The table with title, note and ruled head; what steers a terminal is shown, not sent.

    Where `width` is too small for every column, those of detail leave first, from the right, then the others, those
    named in `WORTH` last; a line names them. No value is ever cut: where one column alone is too wide its words fold.
    """
    from rich.console import Console

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

    sizes = [_size(table, i) for i in range(len(table.heads))]
    leaving = sorted(range(1, len(table.heads)), key=lambda i: _worth(table.heads[i], i))
    shown = list(range(len(table.heads)))
    while leaving and sum(sizes[i].least + _GAP for i in shown) > width:
        shown.remove(leaving.pop(0))
    console.print(_grid(table, _widths({i: sizes[i] for i in shown}, width), sizes))
    left = [table.heads[i].label for i in range(len(table.heads)) if i not in shown]
    more = f"Not shown at this width: {', '.join(left)} (--wide shows every column)." if left else ""
    for line in filter(None, (table.remark, more)):
        console.print(_text(line))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _worth(head: Head, place: int) -> tuple[bool, int, int]:
    named = WORTH.index(head.label) if head.label in WORTH else len(WORTH)
    return not head.detail, -named, -place


class _Size(NamedTuple):
    """How wide a column is at least, and where nothing of it wraps."""

    least: int
    natural: int
    wraps: bool


def _size(table: Table, i: int) -> _Size:
    cells = [_text(table.heads[i].shown), *(_text(row[i].text) for row in table.rows)]
    natural = max(cell.cell_len for cell in cells)
    if table.heads[i].numeric or not any(" " in cell.plain for cell in cells[1:]):
        return _Size(natural, natural, wraps=False)  # a number or an id is never broken
    word = max(part.cell_len for cell in cells for part in cell.split(" "))
    return _Size(max(min(word, _LONGEST_WORD), min(natural, _SENTENCE)), natural, wraps=True)


def _widths(sizes: dict[int, _Size], width: int) -> dict[int, int]:
    """The width of each column: at least what it needs, and room that is left goes to those that wrap most."""
    spare = width - sum(size.least + _GAP for size in sizes.values())
    if spare < 0:  # one column alone, which folds
        return {i: max(1, size.least + spare) for i, size in sizes.items()}
    widths = {i: size.least for i, size in sizes.items()}
    spare = min(spare, sum(size.natural - size.least for size in sizes.values()))
    for _ in range(spare):
        most = max(widths, key=lambda i: (sizes[i].natural > widths[i], sizes[i].natural / max(1, widths[i])))
        widths[most] += 1
    return widths


def _grid(table: Table, widths: dict[int, int], sizes: Sequence[_Size]) -> Grid:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, width in widths.items():
        head, size = table.heads[i], sizes[i]
        side: Literal["right", "left"] = "right" if head.numeric else "left"
        whole = not size.wraps and width >= size.natural
        grid.add_column(_text(head.shown), justify=side, no_wrap=whole, width=width, overflow="fold")
    for row in table.rows:
        grid.add_row(*(_text(row[i].text, row[i].tone) for i in widths))
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
    text = redact(str(value))
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if steers(c) else c for c in text.expandtabs(1))

"""A table as text for a terminal, and text of strangers made safe for one."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Container, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from mlsd.columns import Column
from mlsd.redact import redact
from mlsd.report.render.table import Table, Tone, explain_terms

if TYPE_CHECKING:
    from rich.console import Console

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
COLORS: dict[Tone, str] = {"": "", "good": "green", "bad": "red", "caution": "yellow", "quiet": "bright_black"}


def render(table: Table, *, width: int = PIPED, color: bool = False) -> str:
    """The table with title, note and ruled head; what steers a terminal is shown, not sent.

    Where `width` is too small for every column, those of detail leave first, from the right, then the others, those
    named in `WORTH` last; a line names them. No value is ever cut: where one column alone is too wide its words fold.
    """
    from rich.console import Console
    from rich.text import Text

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
        console.print(Text(_shown(table.title)), style="italic" if color else "")

    heads = [_shown(head.label) for head in table.heads]
    shown_once = cache(_shown)  # most cells of a long table stand in it more than once
    cells = [[shown_once(cell.text) for cell in row] for row in table.rows]
    sizes = [_size(head, [heads[i], *(row[i] for row in cells)]) for i, head in enumerate(table.heads)]

    def worth(i: int) -> tuple[bool, int, int]:
        head = table.heads[i]
        return not head.detail, -WORTH.index(head.label) if head.label in WORTH else -len(WORTH), -i

    leaving = sorted(range(1, len(table.heads)), key=worth)
    shown = list(range(len(table.heads)))
    while leaving and sum(sizes[i].least + _GAP for i in shown) > width:
        shown.remove(leaving.pop(0))
    widths = _widths({i: sizes[i] for i in shown}, width)
    right = {i for i in shown if table.heads[i].numeric}
    tones = [[COLORS[cell.tone] for cell in row] for row in table.rows]
    for parts in _lines([heads, *cells], [["bold"] * len(heads), *tones], widths, right, console):
        if color:
            console.print(Text.assemble(*parts), no_wrap=True, overflow="ignore", crop=False)
        else:
            out.write("".join(part for part, _ in parts) + "\n")
    left = [table.heads[i].label for i in range(len(table.heads)) if i not in shown]
    more = f"Not shown at this width: {', '.join(left)} (--wide shows every column)." if left else ""
    for line in filter(None, (table.remark, more, explain_terms(heads))):
        console.print(Text(_shown(line)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


class _Size(NamedTuple):
    """How wide a column is at least, and where nothing of it wraps."""

    least: int
    natural: int
    wraps: bool


def _size(head: Column, cells: Sequence[str]) -> _Size:
    natural = max(map(_length, cells))
    if head.numeric or not any(" " in cell for cell in cells[1:]):
        return _Size(natural, natural, wraps=False)  # a number or an id is never broken
    word = max(_length(part) for cell in set(cells) for part in cell.split(" "))
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


def _lines(
    rows: Sequence[Sequence[str]],
    styles: Sequence[Sequence[str]],
    widths: dict[int, int],
    right: Container[int],
    console: Console,
) -> Iterator[list[tuple[str, str]]]:
    """Lines as (text, style), the head ruled. A grid of rich takes a millisecond a row; a study has ten thousand."""
    rule = " " + "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (sum(widths.values()) + _GAP * (len(widths) - 1))
    yield []
    for row, row_styles in zip(rows, styles, strict=True):
        folded = {i: _folded(row[i], width, console) for i, width in widths.items()}
        for n in range(max(map(len, folded.values()))):
            line = [(" ", "")]
            for i, parts in folded.items():
                part = parts[n] if n < len(parts) else ""
                room = " " * (widths[i] - _length(part))
                line += [(room, ""), (part, row_styles[i])] if i in right else [(part, row_styles[i]), (room, "")]
                line.append((" " * _GAP, ""))
            yield line
        if row is rows[0]:
            yield [(rule, "")]
    yield []


def _folded(text: str, width: int, console: Console) -> list[str]:
    if _length(text) <= width:
        return [text]
    from rich.text import Text

    return [line.plain.rstrip() for line in Text(text).wrap(console, width, overflow="fold")]


def _length(text: str) -> int:
    """In columns of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _shown(value: str) -> str:
    thin_space = "\u202f"  # between thousands: nice on a page, in the way of whoever copies a number
    return plain(value.replace(thin_space, "")).replace("\n", " ")


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

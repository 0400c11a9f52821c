"""How figures look and are saved: column width, colours that survive colour blindness, grey print and a dark page."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullLocator

from mlsd.records import Record
from mlsd.stats import grouped

T = TypeVar("T")
WIDTH_IN = 6.4  # a text column
_LEGEND_LINES, _LEGEND_LINE_IN = 2, 0.17  # lines of a legend that a canvas has room for; what each further one takes
_SIDE_IN = 0.1  # on each side: a page's fonts are a little wider than those that the layout was made with
_LETTERS = 100  # of a legend, over its columns, that fit this width
INK, FAINT = "#1a1b1c", "#c7c8c9"  # replaced by the page's colours where a figure stands inside one
FASTER, SLOWER, OPEN = "#00775a", "#b04a00", "#0064a0"  # the three answers; likewise replaced
# Okabe and Ito, "Color Universal Design" (2008), without black and the yellow that fades on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")

_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "legend.fontsize": 8.0,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a model may be called $x$
}


class Picture(Record, frozen=True, kw_only=True):
    """A figure ready for a page or a file, or the reason why there is none."""

    id: str
    title: str
    caption: str = ""
    svg: str | None = None
    narrow: str | None = None  # the same for a narrow screen
    missing: str = ""


@contextmanager
def style() -> Iterator[None]:
    """Draw and save figures inside this."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The SVG keeps the characters, which the reader's fonts show; only the PNG has boxes in their place.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def canvas(
    height_in: float = 3.4, columns: int = 1, *, rows: int = 1, width_in: float = WIDTH_IN
) -> tuple[Figure, list[Axes]]:
    """A figure with `columns` axes side by side in each of its `rows`."""
    figure = Figure(figsize=(width_in, height_in), layout=ConstrainedLayoutEngine(w_pad=_SIDE_IN))
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def panels(
    series: Mapping[str, T], columns: int = 1, height_in: float = 3.4, *, by: Callable[[T], str] = lambda _: ""
) -> tuple[Figure, list[tuple[list[Axes], list[tuple[str, T]]]]]:
    """A row of axes for these series by label; where they need more colours than there are, one for each group `by`.

    Rows have the same axes and a legend each; a group of too many is cut.
    """
    groups = [list(series.items())]
    if len(series) > len(COLORS):
        by_group = grouped(groups[0], lambda labelled: by(labelled[1])).values()
        groups = [group[at : at + len(COLORS)] for group in by_group for at in range(0, len(group), len(COLORS))]
    figure = Figure(figsize=(WIDTH_IN, height_in * len(groups)), layout=ConstrainedLayoutEngine(w_pad=_SIDE_IN))
    parts = figure.subfigures(len(groups), 1, squeeze=False)[:, 0] if len(groups) > 1 else [figure]
    rows = [list(part.subplots(1, columns, squeeze=False)[0]) for part in parts]
    for axes in rows[1:]:
        for ax, first in zip(axes, rows[0], strict=True):
            ax.sharex(first)
            ax.sharey(first)
    return figure, list(zip(rows, groups, strict=True))


def legend(axes: Sequence[Axes], columns: int = 2) -> None:
    """One legend under the axes, each label once; the figure grows by its lines, so that the axes keep their size."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        room = _LETTERS // columns
        columns = columns if max(map(len, entries)) <= room else 1
        beyond = max(0, -(-len(entries) // columns) - _LEGEND_LINES)
        part = axes[0].figure
        whole = part.figure
        whole.set_figheight(whole.get_figheight() + beyond * _LEGEND_LINE_IN)
        part.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


def look(index: int, **more: Any) -> dict[str, Any]:
    """Colour and marker of the series of that number, and what else its line has."""
    return {"color": color(index), "marker": marker(index), **more}


def color(index: int) -> str:
    """Of the series of that number."""
    return COLORS[index % len(COLORS)]


def marker(index: int) -> str:
    """Of the series of that number; beyond the colours it tells series apart."""
    return MARKERS[(index + index // len(COLORS)) % len(MARKERS)]


def render(draw: Callable[[], Figure], name: str) -> str:
    """The figure as an SVG element for use inside a page: its ink follows the page, its ids are unique."""
    with style(), matplotlib.rc_context({"svg.hashsalt": name}):
        figure, file = draw(), io.StringIO()
        # `savefig` goes through every artist twice, the first time to lay out alone, which drawing does as well.
        FigureCanvasSVG(figure).print_svg(file, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    # A hundredth of a point is finer than any screen; the further digits are half of the file.
    text = re.sub(r' [dxy]="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), text)
    for shade, name in {INK: "ink", FAINT: "rule", FASTER: "faster", SLOWER: "slower", OPEN: "open"}.items():
        text = text.replace(shade, f"var(--{name}, {shade})")
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', text, count=1)


def png(draw: Callable[[], Figure]) -> bytes:
    """The figure as pixels on white."""
    pixels = io.BytesIO()
    with style():
        draw().savefig(pixels, format="png", dpi=140, facecolor="white", metadata={"Software": None})
    return pixels.getvalue()


def standalone(svg: str) -> str:
    """An SVG of `render` as a file of its own, on white."""
    head = '<?xml version="1.0" encoding="utf-8"?>\n'
    return head + svg.replace("<svg ", '<svg style="background: white" ', 1)


def plain_ticks(*axes: Any) -> None:
    """Logarithmic axes with plain numbers at 1, 2 and 5 times powers of ten, or at powers alone where many fit."""
    for axis in axes:
        low, high = axis.get_view_interval()
        wide = high / max(low, 1e-300) > 100
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())

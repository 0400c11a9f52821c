"""A report as Markdown, with figures as files beside it."""

from __future__ import annotations

import re

from mlsd.report.render.sections import Page, Section
from mlsd.report.render.table import Table
from mlsd.report.render.terminal import plain

MOST_ROWS = 60  # of a table; the page in HTML has all
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def render(page: Page, figures: str = "figures") -> str:
    """The text; `figures` is the folder of the SVG files, relative to it."""
    parts = [escape(page.answer), f"# {escape(page.title)}", escape(page.summary)]
    parts += [f"- {escape(note)}" for note in page.notes]
    parts += [_section(section, figures) for section in page.sections]
    traces = "\n".join(f"- **{escape(trace.what)}**: {escape(trace.how)}" for trace in page.traces)
    parts += ["## Where each number comes from", traces, escape(page.made)]
    return "\n\n".join(parts) + "\n"


def _section(section: Section, figures: str) -> str:
    parts = [f"## {escape(section.title)}", *(escape(text) for text in section.text)]
    parts += [table_text(table) for table in section.tables]
    for picture in section.pictures:
        parts.append(f"![{escape(picture.title)}]({figures}/{picture.id}.svg)\n\n{escape(picture.caption)}")
    parts += [f"Missing: {escape(missing)}" for missing in section.missing]
    return "\n\n".join(parts)


def table_text(table: Table) -> str:
    """One table with its title and note."""
    head = "| " + " | ".join(escape(head.shown) for head in table.heads) + " |"
    rule = "|" + "|".join(" --: " if head.numeric else " :-- " for head in table.heads) + "|"
    rows = ["| " + " | ".join(escape(cell.text) for cell in row) + " |" for row in table.rows[:MOST_ROWS]]
    lines = [f"**{escape(table.title)}**", "\n".join([head, rule, *rows])]
    if len(table.rows) > MOST_ROWS:
        lines.append(f"The first {MOST_ROWS} of {len(table.rows)} rows; report.html has them all.")
    if table.note:
        lines.append(escape(table.note))
    return "\n\n".join(lines)


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(plain(text).split()))

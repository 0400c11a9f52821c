"""A report as Markdown, with figures as files beside it."""

import re
from collections.abc import Sequence

from mlsd.report.render.plot import Picture
from mlsd.report.render.sections import Page, Section
from mlsd.report.render.table import Table, explain_terms
from mlsd.report.render.terminal import plain

MOST_ROWS = 60  # of a table; the page in HTML has all
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def render(page: Page, figures: str = "figures") -> str:
    """The text; `figures` is the folder of the SVG files, relative to it."""
    parts = [f"# {escape(page.verdict)}", table_text(page.scoreboard)] if page.scoreboard else []
    time = f" ({page.next_time})" if page.next_time else ""
    parts += [f"Next{time}: {escape(page.next)}"] if page.next else []
    parts += [
        f"{'##' if page.scoreboard else '#'} {escape(page.answer)}",
        explain_terms(),
        *_pictures([page.chart], figures),
    ]
    for advice in page.advice:
        parts += [f"**{escape(advice.title)}**", "\n".join(f"- {escape(line)}" for line in advice.lines)]
    disturbed = [*(f"**INVALID** {escape(text)}" for text in page.disturbed), *map(escape, page.notes)]
    parts += ["## What disturbs the answer", "\n".join(f"- {text}" for text in disturbed)] if disturbed else []
    parts += [f"*{escape(page.title)}.* {escape(page.summary)}"]
    parts += [_section(section, figures) for section in page.sections if not section.empty]
    missing = [f"- {escape(title)}: {escape(' '.join(texts))}" for title, texts in page.missing.items()]
    parts += ["## No data for", "\n".join(missing)] if missing else []
    return "\n\n".join([*parts, escape(page.written)]) + "\n"


def _section(section: Section, figures: str) -> str:
    parts = [f"## {escape(section.title)}", *(escape(text) for text in section.text)]
    return "\n\n".join([*parts, *map(table_text, section.tables), *_pictures(section.pictures, figures)])


def _pictures(pictures: Sequence[Picture], figures: str) -> list[str]:
    return [f"![{escape(p.title)}]({figures}/{p.id}.svg)\n\n{escape(p.caption)}" for p in pictures if not p.missing]


def table_text(table: Table) -> str:
    """One table with its title and note."""
    head = "| " + " | ".join(escape(head.label) for head in table.heads) + " |"
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

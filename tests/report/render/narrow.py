"""What a narrow terminal shows of a table, compared with its values."""

import re

from mlsd.report.render.table import Table
from mlsd.report.render.terminal import plain


def _letters(text: str) -> str:
    return re.sub(r"[\s\u202f]", "", plain(text))


def assert_nothing_is_cut(table: Table, shown: str) -> None:
    """Every cell stands there whole, but for columns that are named as left out; an id or a number on one line."""
    left = re.search(r"Not shown at this width: (.*)\(--wide", shown, re.S)
    names = "" if left is None else _letters(left.group(1))
    if len(names.split(",")) == len(table.heads) - 1:
        return  # one column alone, whose words fold
    for index, head in enumerate(table.heads):
        if names and _letters(head.label) in names.split(","):
            continue
        for row in table.rows:
            value = plain(row[index].text.replace("\u202f", ""))
            for word in value.split() if " " in value and not head.numeric else [value.strip()]:
                whole = word if len(word) <= 24 or head.numeric else ""  # longer words go on in the next line
                assert whole in shown, f"{head.label}: {word!r} is not in\n{shown}"

"""Names that others chose, cleaned where they enter: as they may be stored, drawn and read back by any program."""

import re

# What XML 1.0 cannot hold (2.2), and what moves a terminal's cursor; tabs and ends of lines may stay.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# The same as JSON writes them, but not behind a backslash that stands for itself, nor a whole pair.
_ESCAPED = re.compile(
    r"\\\\|\\ud[89ab]..\\ud[c-f]..|(\\[bf]|\\u(?:00(?:0[0-8bcef]|1.|7f|[89].)|d[89a-f]..|fff[ef]))", re.IGNORECASE
)


def clean(text: str) -> str:
    """A text with another character for each control, half of a pair, and what is no character."""
    return text if text.isprintable() else _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)


def clean_json(text: str) -> str:
    """The same of every text in a JSON text."""
    return clean(_ESCAPED.sub(lambda match: r"\ufffd" if match[1] else match[0], text) if "\\" in text else text)

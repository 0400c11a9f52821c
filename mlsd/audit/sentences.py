"""What a rule finds, as columns, and how figures become a sentence.

A rule gives one DataFrame: the rows it speaks of, its verdict (`kind`), a template and the values that fill it. Numbers
among the values are the figures that decided; texts only fill.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from mlsd.audit.frame import Column, Frame
from mlsd.audit.rows import Credibility, RuleFinding

_ENDS: dict[str, str] = {"impossible": ": this cannot be true.", "suspicious": "."}


class Figure(float):
    """A number in a template: ``{round_ms:ms}`` has one digit behind the point from 10 up, else three in all."""

    def __format__(self, spec: str) -> str:
        if spec == "ms":
            return f"{float(self):.1f}" if self >= 10 else f"{float(self):.3g}"
        return format(float(self), spec)


def found(where: Column, kind: Any, sentence: Any, why: Any = "", **values: Any) -> Frame:
    """What a rule finds of the rows `where`.

    `kind` is possible, suspicious, impossible, ask (a question, nothing is doubted) or told (it bounds nothing); `why`
    goes on from the sentence of a suspicious row.
    """
    return pd.DataFrame({"kind": kind, "sentence": sentence, "why": why, **values}, index=where.index)[where]


def findings(rule: str, found_rows: Frame) -> Iterator[tuple[int, RuleFinding]]:
    """The finding of each row, by its place in the frame."""
    numbers = [name for name in found_rows.columns[3:] if pd.api.types.is_numeric_dtype(found_rows[name])]
    for place, row in zip(found_rows.index, found_rows.to_dict("records"), strict=True):
        figures = {name: float(row[name]) for name in numbers if row[name] == row[name]}
        text = str(row["sentence"]).format(**(row | {name: Figure(value) for name, value in figures.items()}))
        yield int(place), _finding(rule, str(row["kind"]), text, str(row["why"]), figures)


def _finding(rule: str, kind: str, text: str, why: str, figures: dict[str, float]) -> RuleFinding:
    if kind == "ask":  # it may begin with the name of a program
        return RuleFinding(rule=rule, figures=figures, sentence=text + "." * (text[-1] not in ".?"), ask=True)
    verdict: Credibility = kind if kind != "told" else "not judged"  # type: ignore[assignment]
    text = text[0].upper() + text[1:] + (why if kind == "suspicious" else "") + _ENDS.get(kind, ".")
    return RuleFinding(rule=rule, verdict=verdict, figures=figures, sentence=text)

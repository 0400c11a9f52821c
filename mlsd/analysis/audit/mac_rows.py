"""The published rows on Macs with typed columns, for whoever fits or tests a predictor: table `mac-2026`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mlsd.analysis.audit import published_tables as published
from mlsd.measure.exchange.printed import parse_printed
from mlsd.records import NO_DRAFTER, Record

NAME = "mac-2026"
AcceptanceOf = Literal["proposed", "position", "output"]


class MacRow(Record, frozen=True, kw_only=True):
    """One published setting on one Mac: plain decoding, or speculation with the plain speed beside it."""

    source: str  # the address of the thread; rows of one source are never both fitted and tested
    date: str
    chip: str | None  # as in "M1 Max"
    engine: str | None
    build: str | None
    target: str  # as the source calls it
    family: str | None
    total_b: float | None  # parameters, 10^9, as the model is called
    active_b: float | None
    bits: float | None  # a weight takes, scales included
    method: str  # "none" for plain decoding
    draft: str | None
    gamma: int | None  # drafted tokens a round at most; None where the source does not say or it is adaptive
    prompt: str | None
    n_prompt: int | None
    n_predict: int | None
    plain_tok_s: float | None
    sd_tok_s: float | None
    speedup: float | None
    acceptance: float | None
    acceptance_of: AcceptanceOf | None  # None where the source does not say
    mgl: float | None
    rounds: int | None
    known_wrong: str  # why the row should not be believed; empty for honest rows


class MacPass(Record, frozen=True, kw_only=True):
    """What one target pass of so many rows took."""

    source: str
    chip: str | None
    engine: str | None
    target: str
    bits: float | None
    n_rows: int
    ms: float


def mac_rows() -> tuple[MacRow, ...]:
    """All rows of `mac-2026`, the known wrong ones included."""
    tables = [table for table in published.load(NAME).tables if table.audited]
    return tuple(_row(table, cells) for table in tables for cells in table.cells)


def mac_passes() -> tuple[MacPass, ...]:
    """The verification passes of `mac-2026`."""
    return tuple(
        MacPass(
            source=cells["thread"],
            chip=cells.get("chip"),
            engine=cells.get("engine"),
            target=cells["target"],
            bits=_float(cells, "bits"),
            n_rows=int(cells["n_rows"]),
            ms=float(cells["ms"]),
        )
        for cells in published.load(NAME).table("passes").cells
    )


def _row(table: published.PublishedTable, cells: Mapping[str, str]) -> MacRow:
    method = cells.get("drafter", NO_DRAFTER)
    plain = method == NO_DRAFTER
    meaning = cells.get("acceptance_of")
    return MacRow(
        source=cells.get("thread", table.source),
        date=cells.get("date", table.date),
        chip=cells.get("chip"),
        engine=cells.get("engine"),
        build=cells.get("build"),
        target=cells["target"],
        family=cells.get("family"),
        total_b=_float(cells, "total_b"),
        active_b=_float(cells, "active_b"),
        bits=_float(cells, "bits"),
        method=method,
        draft=cells.get("draft"),
        gamma=_int(cells, "gamma"),
        prompt=cells.get("prompt"),
        n_prompt=_int(cells, "n_prompt"),
        n_predict=_int(cells, "n_predict"),
        plain_tok_s=_float(cells, "tok_s" if plain else "baseline_tok_s"),
        sd_tok_s=None if plain else _float(cells, "tok_s"),
        speedup=_float(cells, "speedup"),
        acceptance=_float(cells, "acceptance"),
        acceptance_of=meaning if meaning in ("proposed", "position", "output") else None,  # type: ignore[arg-type]
        mgl=_float(cells, "mgl"),
        rounds=_int(cells, "rounds"),
        known_wrong=table.known_wrong,
    )


def _float(cells: Mapping[str, str], column: str) -> float | None:
    return parse_printed(cells[column]).value if column in cells else None


def _int(cells: Mapping[str, str], column: str) -> int | None:
    return int(cells[column]) if cells.get(column, "").isdigit() else None

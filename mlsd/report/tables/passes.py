"""The table of profiled passes: which part of a network takes what share. Shares, never speeds."""

from __future__ import annotations

from collections.abc import Sequence

from mlsd.analysis.results.names import method_name
from mlsd.analysis.study.study import Study
from mlsd.drafters import drafting_key
from mlsd.engine.parts import PARTS, Part
from mlsd.errors import AnalysisError
from mlsd.measure.store.pass_shares import PassShares, block_key
from mlsd.report.render.table import Cell, Table, head, name, number, percent, text

_LABELS: dict[str, str] = {"head": "LM head", "ffn": "FFN"}
_DOUBT = "in doubt: looking, or other programs, changed the pass too much"


def share_cell(shares: PassShares | None, part: Part) -> Cell:
    """One part's share; marked where the pass was changed too much by the looking."""
    if shares is None:
        return text(None, note="not profiled: mlsd breakdown")
    share = shares.shares[part]
    if share is None:
        return text(None, note="the network has no such part")
    value = 100 * share
    if shares.in_doubt:
        return Cell(text=f"{value:.1f} % ?", sort=value, tone="doubt", note=_DOUBT)
    return Cell(text=f"{value:.1f} %", sort=value)


def pass_table(study: Study) -> Table:
    """Shares of every profiled pass. Raises AnalysisError when none was."""
    profiled = [(*network, one) for network, found in study.machine.shares.items() for one in found]
    if not profiled:
        raise AnalysisError(
            "No pass was profiled, so shares of LM head, attention and experts are not known.",
            hint=f"Profile some: mlsd breakdown TARGET --drafter NAME --db {study.source}.",
        )
    return shares_table([(_network(study, key, part_key), one) for key, part_key, one in profiled])


def shares_table(profiled: Sequence[tuple[str, PassShares]]) -> Table:
    """Shares of profiled passes, each of a network by name."""
    parts = [part for part in PARTS if any(part in one.parts_ns for _, one in profiled)]
    rows = [
        (
            text(label),
            number(one.rows, 0),
            number(one.depth, 0),
            number(one.plain_ns / 1e6, 3),
            *(share_cell(one, part) for part in parts),
            percent(one.head_by_difference),
            number(one.agreement),
            number(one.inflation),
        )
        for label, one in profiled
    ]
    return Table(
        id="pass-shares",
        title="Where the time of a pass goes (profiled, no speeds)",
        heads=(
            name("network"),
            head("rows", "positions of the pass, each with an output"),
            head("depth", "positions in the context before it"),
            head("T", "the fastest plain pass", unit="ms"),
            *(head(_LABELS.get(part, part), "parts_ns / sum of parts_ns of profiled passes") for part in parts),
            head("no outputs", "(T(k) - T(k without outputs)) / T(k): LM head and sampling a second way"),
            head("parts / T", "sum of the profiled parts over a plain pass"),
            head("profiled / T", "profiled over plain pass"),
        ),
        rows=tuple(rows),
        trace="table pass_share, by mlsd breakdown: engine.profiler reads the clock between parts",
    )


def _network(study: Study, key: str, part_key: str | None) -> str:
    own = study.machine.name_of(key)
    if part_key is None:
        return own
    for case in study.cases.values():
        cut = case.drafter.draft is None and case.source == "engine"
        if cut and part_key in (drafting_key(case.drafter), block_key(case.drafter)):
            return f"{own}, draft of {method_name(case.drafter.name, None, '')}"
    return f"{own}, draft [{part_key[:12]}]"

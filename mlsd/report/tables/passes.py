"""The table of profiled passes: which part of a network takes what share. Shares, never speeds."""

from collections.abc import Sequence

from mlsd.analysis.results.round_split import RoundKind, RoundSplit
from mlsd.analysis.study.study import Study
from mlsd.engine.parts import PARTS, Part
from mlsd.errors import AnalysisError
from mlsd.records import Case
from mlsd.report.render.table import Cell, Column, Table, number, numbers, percent, table, text, words
from mlsd.store.pass_shares import PassShares, part_key
from mlsd.trials.arms import arm_named, arm_of
from mlsd.units import quoted

_LABELS: dict[str, str] = {"head": "LM head", "ffn": "FFN"}
_DOUBT = "in doubt: looking, or other programs, changed the pass too much"


def share_cell(shares: PassShares | None, part: Part) -> Cell:
    """One part's share; marked where the pass was changed too much by the looking."""
    if shares is None:
        return text(None, note="not profiled: mlsd calibrate --parts")
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
            hint=f"Profile some: mlsd calibrate TARGET --parts --drafter NAME --db {quoted(study.source)}.",
        )
    return shares_table([(_network(study, key, part), one) for key, part, one in profiled])


def shares_table(profiled: Sequence[tuple[str, PassShares]]) -> Table:
    """Shares of profiled passes, each of a network by name."""

    def share(part: Part) -> Column[tuple[str, PassShares]]:
        trace = "parts_ns / sum of parts_ns of profiled passes"
        return numbers(_LABELS.get(part, part), lambda row: share_cell(row[1], part), trace)

    return table(
        "Where the time of a pass goes (profiled, no speeds)",
        profiled,
        words("network", lambda row: row[0]),
        numbers("rows", lambda row: row[1].rows, "positions of the pass, each with an output"),
        numbers("depth", lambda row: row[1].depth, "positions in the context before it"),
        numbers("T", lambda row: number(row[1].plain_ns / 1e6, 3), "the fastest plain pass", unit="ms"),
        *(share(part) for part in PARTS if any(part in one.parts_ns for _, one in profiled)),
        numbers(
            "no outputs",
            lambda row: percent(row[1].head_by_difference),
            "(T(k) - T(k without outputs)) / T(k): LM head and sampling a second way",
        ),
        numbers("parts / T", lambda row: number(row[1].agreement), "sum of the profiled parts over a plain pass"),
        numbers("profiled / T", lambda row: number(row[1].inflation), "profiled over plain pass"),
        id="pass-shares",
    )


def _network(study: Study, key: str, part: str | None) -> str:
    own = study.machine.name_of(key)
    if part is None:
        return own
    for case in study.cases.values():
        itself = case.drafter.draft is None and case.source == "engine"
        if itself and part_key(case.drafter) == part:
            return f"{own}, draft of {arm_named(case.drafter.name).name}"
    return f"{own}, draft [{part[:12]}]"


def round_table(case: Case, split: RoundSplit) -> Table:
    """The parts of a method's rounds, and what is known inside them."""
    total = sum(split.ms_per_round.values())
    rows: list[tuple[str, float]] = []
    for part, ms in split.ms_per_round.items():
        rows.append((part, ms))
        rows += [(f"  {inside}", own_ms) for inside, own_ms in split.inside_ms.get(part, {}).items()]
    return table(
        arm_of(case).setting,
        rows,
        words("part of a round", lambda row: row[0]),
        numbers("ms a round", lambda row: number(row[1], 3)),
        numbers("share", lambda row: percent(row[1] / total if total else None)),
    )


def kinds_table(split: RoundSplit) -> Table:
    """Rounds with a proposal beside rounds without."""
    kinds = [kind for kind in (split.found, split.not_found) if kind is not None]

    def column(label: str, kind: RoundKind | None) -> Column[str]:
        ms = {} if kind is None else kind.ms
        n_rounds = 0 if kind is None else kind.rounds
        return numbers(label, lambda name: n_rounds if name == "rounds" else number(ms.get(name), 3))

    return table(
        "Rounds, ms",
        dict.fromkeys(["rounds", *(name for kind in kinds for name in kind.ms)]),
        words("", lambda name: name),
        column("with a proposal", split.found),
        column("without", split.not_found),
    )

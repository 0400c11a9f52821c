"""Drafting methods beside each other: speedup and MGL for each kind of task, and where the time of a round goes.

The tables of the small-model study (seed 004, tables 4, 6 and 7) for any models. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from mlsd.analysis.results.round_split import (
    Limit,
    RoundKind,
    inside_parts,
    limit_of,
    round_kinds,
    stat_totals,
)
from mlsd.errors import AnalysisError
from mlsd.planning.tasks import KINDS, TASK_KEY
from mlsd.records import Record
from mlsd.trials.decisions import Effect
from mlsd.trials.results import ArmResult, Measured
from mlsd.trials.sums import Sums, sums_of_row
from mlsd.units import format_bytes, quoted


class MethodRow(Record, frozen=True, kw_only=True):
    """One method on one target, over all tasks and on each kind."""

    method: str
    overall: ArmResult
    by_kind: dict[str, ArmResult]  # kinds that were measured


class TimingRow(Record, frozen=True, kw_only=True):
    """Where a method's rounds spend their time, means over all rounds of its valid trials."""

    target: str
    method: str
    gamma: int
    case_id: str  # of one of its trials
    rounds: int
    ms_per_round: dict[str, float]  # draft, verify, rollback, sample, other; they sum to the round
    mgl: float  # committed / rounds
    break_even_mgl: float | None  # MGL / speedup: the MGL at which the method is as fast as plain decoding
    effect: Effect  # what is decided of it
    inside_ms: dict[str, float]  # what is known inside of draft and rollback, in ms a round
    limit: Limit | None
    match_rate: float | None  # rounds with a proposal / rounds, for methods that look proposals up
    match_ms: float | None  # time of a look-up that found something
    no_match_ms: float | None  # and of one that did not
    found: RoundKind | None = None  # rounds with a proposal, for such methods
    not_found: RoundKind | None = None
    fell_back: str | None = None  # why a draft that should share the target's memory keeps its own instead
    draft_pass_ms: float | None = None  # a pass of the draft, for methods that make it of the target
    draft_pass_bytes: float | None = None  # weights that it reads


def tasks(results: Iterable[ArmResult]) -> list[ArmResult]:
    """The arms whose prompts are tasks, shipped or of a file. Raises: AnalysisError when there is none."""
    own = [one for one in results if set(one.workloads) & set(KINDS) or one.prompts[0].startswith(TASK_KEY)]
    if not own:
        raise AnalysisError("No tasks were measured.", hint="Measure them: mlsd run E.")
    return own


def methods_by_kind(results: Iterable[ArmResult], pooled: Iterable[ArmResult]) -> list[MethodRow]:
    """Every method over all tasks, and on each kind of task. Raises: AnalysisError without tasks."""
    apart: dict[tuple[Any, ...], dict[str, ArmResult]] = {}
    for one in tasks(results):
        apart.setdefault(_key(one), {})[one.text] = one
    own = [one for one in tasks(pooled) if not one.is_plain]
    if not own:
        raise AnalysisError("No drafting method was measured on tasks.", hint="Measure them: mlsd run E.")
    return [
        MethodRow(
            method=one.arm.name,
            overall=one,
            by_kind=dict(sorted(apart.get(_key(one), {}).items(), key=lambda item: _place(item[0]))),
        )
        for one in own
    ]


def _place(kind: str) -> tuple[int, str]:
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind)


def _key(one: ArmResult) -> tuple[Any, ...]:
    return one.question.suite, one.question.target, one.arm, one.question.n_predict, one.session


def timing(pooled: Iterable[ArmResult], outcomes: pd.DataFrame | None = None) -> list[TimingRow]:
    """Time of a round by part for every method on tasks.

    Trials whose times are not the method's are left out. `outcomes` (`frames.outcomes`) tell rounds with a proposal
    from rounds without. Raises: AnalysisError without tasks.
    """
    timed = [one for one in tasks(pooled) if not one.is_plain and one.n_valid and one.timed_whole.rounds]
    return [_timing_row(one, outcomes) for one in timed]


def _timing_row(one: ArmResult, outcomes: pd.DataFrame | None) -> TimingRow:
    rows = [row for row in one.trials if row.trial.valid and row.trial.decode_ns and row.whole.rounds]
    totals = stat_totals([row.trial.stats for row in rows])
    match, no_match = totals.get("match_rounds", 0.0), totals.get("no_match_rounds", 0.0)
    parts, rounds, first = one.ms_per_round, one.timed_whole.rounds, rows[0].trial
    inside = inside_parts(totals, parts["rollback"], rounds, first.rollback_target, first.rollback_draft)
    found, not_found = round_kinds([] if outcomes is None else _round_sums(rows, outcomes), totals)
    steps = totals["draft_steps"] if "draft_read_bytes" in totals else None
    return TimingRow(
        target=one.case.target.id,
        method=one.arm.name,
        gamma=one.case.gamma,
        case_id=first.case_id,
        rounds=rounds,
        ms_per_round=parts,
        mgl=one.mgl or 0.0,
        break_even_mgl=one.break_even_mgl,
        effect=one.effect,
        inside_ms={label: ms for known in inside.values() for label, ms in known.items()},
        limit=limit_of(parts, [(row.trial.stats, row.whole.proposed) for row in rows], rounds),
        match_rate=match / (match + no_match) if match + no_match else None,
        match_ms=totals["match_propose_ns"] / match / 1e6 if match else None,
        no_match_ms=totals["no_match_propose_ns"] / no_match / 1e6 if no_match else None,
        found=found,
        not_found=not_found,
        fell_back=one.fell_back,
        draft_pass_ms=None if steps is None else totals["draft_forward_ns"] / steps / 1e6,
        draft_pass_bytes=None if steps is None else totals["draft_read_bytes"] / steps,
    )


def _round_sums(rows: Iterable[Measured], outcomes: pd.DataFrame) -> list[Sums]:
    """The rounds of these trials; their cases have no other trials that count."""
    own = outcomes[outcomes["case_id"].isin({row.trial.case_id for row in rows})]
    return [sums_of_row(row) for row in own.to_dict("records")]


def sentences(
    rows: Sequence[TimingRow], efficiencies: Mapping[str, Mapping[int, float]], source: str
) -> tuple[str, ...]:
    """What a wider pass costs each target, then each method on it: committed against needed, and what takes the time.

    `efficiencies` are T(1)/T(k) by target and k, `source` is the database to store a calibration in.
    """
    said: list[str] = []
    for target in dict.fromkeys(row.target for row in rows):
        said.append(_wider(target, efficiencies.get(target, {}), source))
        said += [text for row in rows if row.target == target and (text := _verdict(row))]
    return tuple(said)


def _wider(target: str, efficiency: Mapping[int, float], source: str) -> str:
    if 2 not in efficiency:
        return f"{target}: T(2)/T(1) was not timed (mlsd calibrate {quoted(target)} --db {quoted(source)})."
    widest = max(efficiency)
    wide = f", T({widest})/T(1) = {1 / efficiency[widest]:.2f}" if widest > 2 else ""
    return f"{target}: T(2)/T(1) = {1 / efficiency[2]:.2f}{wide}; 1 would mean that verification is free."


_PAYS: dict[Effect, str] = {
    "faster": "pays",
    "slower": "does not pay",
    "no difference": "makes no difference",
    "undecided": "is not decided to pay",
}


def _verdict(row: TimingRow) -> str | None:
    """None where plain decoding of the target was not timed."""
    if row.break_even_mgl is None:
        return None
    total_ms = sum(row.ms_per_round.values())
    part, ms = max(row.ms_per_round.items(), key=lambda item: item[1])
    verdict = _PAYS[row.effect]
    text = (
        f"{row.method}, gamma {row.gamma}, {verdict} on {row.target}: a round commits {row.mgl:.2f} tokens and takes "
        f"{row.break_even_mgl:.2f} plain rounds, {100 * ms / total_ms:.0f} % of it in {part}"
    )
    if row.found is not None and row.not_found is not None:
        share = row.found.rounds / (row.found.rounds + row.not_found.rounds)
        plain_ms = total_ms / row.break_even_mgl
        costly = row.found.ms["round"] / plain_ms
        text += f"; the {100 * share:.0f} % of rounds with a proposal take {costly:.1f} plain rounds each"
    if row.draft_pass_ms is not None and row.draft_pass_bytes is not None:
        share = row.draft_pass_ms * row.break_even_mgl / total_ms
        saves = "saves" if share < 1 else "saves no"
        read = format_bytes(round(row.draft_pass_bytes))
        text += f"; a pass of its draft reads {read} and {saves} time: {share:.2f} plain rounds"
    return text + "."

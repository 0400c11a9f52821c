"""Drafting methods beside each other: speedup and MGL for each kind of task, and where the time of a round goes.

The tables of the small-model study (seed 004, tables 4, 6 and 7) for any models. Works on the frames of `frames` and
on what methods count themselves (`Trial.stats`). Draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from mlsd.analysis.results.speedups import Speedup, speedups
from mlsd.errors import AnalysisError
from mlsd.planning.tasks import KINDS, TASK_KEY
from mlsd.records import Record
from mlsd.trials.arms import arm_named
from mlsd.trials.sums import Sums, sums_of_row, total
from mlsd.units import format_bytes, quoted

_ARM = ["target", "drafter", "draft", "options", "gamma"]


class MethodRow(Record, frozen=True, kw_only=True):
    """One method on one target, over all tasks and on each kind."""

    method: str
    overall: Speedup
    by_kind: dict[str, Speedup]  # kinds that were measured


class TimingRow(Record, frozen=True, kw_only=True):
    """Where a method's rounds spend their time, means over all rounds of its valid trials."""

    target: str
    method: str
    gamma: int
    case_id: str  # of one of its trials
    rounds: int
    ms_per_round: dict[str, float]  # draft, verify, rollback, sample, other; they sum to the round
    mgl: float  # committed / rounds
    break_even_mgl: float | None  # round / plain round: the MGL at which the method is as fast as plain decoding
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


def task_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials whose prompt is a task, shipped or of a file. Raises: AnalysisError when there is none."""
    own = trials[trials["workload"].isin(KINDS) | trials["prompt"].astype(str).str.startswith(TASK_KEY)]
    if own.empty:
        raise AnalysisError("No tasks were measured.", hint="Measure them: mlsd run E.")
    return own


def methods_by_kind(trials: pd.DataFrame) -> list[MethodRow]:
    """Speedup (paired by block) and MGL of every method, over all tasks and on each kind of task.

    Raises: AnalysisError without tasks, or when machines are mixed.
    """
    own = task_trials(trials)
    if (own["arm"] == "sd").sum() == 0:
        raise AnalysisError("No drafting method was measured on tasks.", hint="Measure them: mlsd run E.")
    apart: dict[tuple[Any, ...], dict[str, Speedup]] = {}
    for speedup in speedups(own, ("workload",)):
        apart.setdefault(_key(speedup), {})[str(speedup.workload)] = speedup
    return [
        MethodRow(
            method=arm_named(speedup.drafter, speedup.draft, speedup.options).name,
            overall=speedup,
            by_kind=dict(sorted(apart[_key(speedup)].items(), key=lambda item: _place(item[0]))),
        )
        for speedup in speedups(own, ())
    ]


def _place(kind: str) -> tuple[int, str]:
    """The six kinds in their order, those of another set after them by name."""
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind)


def _key(s: Speedup) -> tuple[Any, ...]:
    return (s.target, s.comparable, s.drafter, s.draft, s.options, s.gamma, s.n_predict)


def timing(
    trials: pd.DataFrame, stats: Mapping[int, Mapping[str, float]], outcomes: pd.DataFrame | None = None
) -> list[TimingRow]:
    """Time of a round by part for every method on tasks; `stats` gives each trial's own counts and times by its id.

    Trials whose times are not the method's are left out. `outcomes` (`frames.outcomes`) tell rounds with a proposal
    from rounds without. A method pays where its MGL exceeds ``T_round / T_plain``, both means over all rounds on the
    same target. Raises: AnalysisError without tasks.
    """
    own = task_trials(trials)
    good = own[(own["arm"] == "sd") & _timed(own)]
    plain = _plain_round_ms(own)
    return [
        _timing_row(dict(zip(_ARM, key, strict=True)), group, stats, outcomes, plain)
        for key, group in good.groupby(_ARM, dropna=False, sort=False)
    ]


def _timed(trials: pd.DataFrame) -> pd.Series[bool]:
    return trials["valid"].fillna(False) & (trials["rounds"].fillna(0) > 0) & trials["decode_ns"].notna()


def _timing_row(
    named: Mapping[str, Any],
    group: pd.DataFrame,
    stats: Mapping[int, Mapping[str, float]],
    outcomes: pd.DataFrame | None,
    plain: Mapping[str, float],
) -> TimingRow:
    whole = total(map(sums_of_row, group.to_dict("records")))
    own = [stats.get(int(i), {}) for i in group["trial_id"]]
    totals = stat_totals(own)
    match, no_match = totals.get("match_rounds", 0.0), totals.get("no_match_rounds", 0.0)
    parts, rounds = whole.ms_per_round, whole.rounds
    plain_ms = plain.get(str(named["target"]))
    first = group.iloc[0]
    draft_rollback = _words(first["rollback_draft"])
    inside = inside_parts(totals, parts["rollback"], rounds, _words(first["rollback_target"]), draft_rollback)
    found, not_found = round_kinds([] if outcomes is None else _round_sums(group, outcomes), totals)
    return TimingRow(
        target=str(named["target"]),
        method=arm_named(str(named["drafter"]), _words(named["draft"]), _words(named["options"]) or "").name,
        gamma=int(named["gamma"]),
        case_id=str(first["case_id"]),
        rounds=rounds,
        ms_per_round=parts,
        mgl=whole.committed / rounds,
        break_even_mgl=sum(parts.values()) / plain_ms if plain_ms else None,
        inside_ms={label: ms for known in inside.values() for label, ms in known.items()},
        limit=limit_of(parts, zip(own, group["proposed"], strict=True), rounds),
        match_rate=match / (match + no_match) if match + no_match else None,
        match_ms=totals["match_propose_ns"] / match / 1e6 if match else None,
        no_match_ms=totals["no_match_propose_ns"] / no_match / 1e6 if no_match else None,
        found=found,
        not_found=not_found,
        fell_back=_words(first["fell_back"]),
        draft_pass_ms=totals["draft_forward_ns"] / totals["draft_steps"] / 1e6
        if "draft_read_bytes" in totals
        else None,
        draft_pass_bytes=totals["draft_read_bytes"] / totals["draft_steps"] if "draft_read_bytes" in totals else None,
    )


def _round_sums(group: pd.DataFrame, outcomes: pd.DataFrame) -> list[Sums]:
    """The rounds of these trials; their cases have no other trials that count."""
    own = outcomes[outcomes["case_id"].isin(set(group["case_id"]))]
    return [sums_of_row(row) for row in own.to_dict("records")]


def _plain_round_ms(trials: pd.DataFrame) -> dict[str, float]:
    """Mean length of a round of plain decoding, by target."""
    plain = trials[(trials["arm"] == "ar") & _timed(trials)]
    sums = plain.groupby("target")[["parts_ns", "rounds"]].sum()
    return {str(target): float(row.parts_ns) / float(row.rounds) / 1e6 for target, row in sums.iterrows()}


def _words(value: Any) -> str | None:
    return None if pd.isna(value) else str(value)


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


def _verdict(row: TimingRow) -> str | None:
    """None where plain decoding of the target was not timed."""
    if row.break_even_mgl is None:
        return None
    total_ms = sum(row.ms_per_round.values())
    part, ms = max(row.ms_per_round.items(), key=lambda item: item[1])
    verdict = "pays" if row.mgl > row.break_even_mgl else "does not pay"
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

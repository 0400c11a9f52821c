"""Drafting methods beside each other: speedup and MGL for each kind of task, and where the time of a round goes.

The tables of the small-model study (seed 004, tables 4, 6 and 7) for any models. Works on the frames of `frames` and
on what methods count themselves (`Trial.stats`). Draws nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mlsd.analysis.frames import PARTS
from mlsd.analysis.metrics import Speedup, speedups
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.tasks import KINDS

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
    rounds: int
    ms_per_round: dict[str, float]  # draft, verify, rollback, sample, other; they sum to the round
    mgl: float  # committed / rounds
    break_even_mgl: float | None  # round / plain round: the MGL at which the method is as fast as plain decoding
    inside_ms: dict[str, float]  # what the method timed itself within draft and rollback, in ms a round
    match_rate: float | None  # rounds with a proposal / rounds, for methods that look proposals up
    match_ms: float | None  # time of a look-up that found something
    no_match_ms: float | None  # and of one that did not


def method_name(drafter: str, draft: str | None, options: str) -> str:
    """A method as a reader names it: its draft where it has one, its options where they are not the defaults."""
    values: dict[str, Any] = json.loads(options) if options else {}
    listed = ", ".join(f"{key} {value}" for key, value in values.items())
    return drafter + (f" {draft}" if draft else "") + (f" ({listed})" if listed else "")


def task_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials whose prompt is a task of one of the six kinds.

    Raises: AnalysisError when there is none.
    """
    own = trials[trials["workload"].isin(KINDS)]
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
            method=method_name(speedup.drafter, speedup.draft, speedup.options),
            overall=speedup,
            by_kind={kind: apart[_key(speedup)][kind] for kind in KINDS if kind in apart[_key(speedup)]},
        )
        for speedup in speedups(own, ())
    ]


def _key(s: Speedup) -> tuple[Any, ...]:
    return (s.target, s.comparable, s.drafter, s.draft, s.options, s.gamma, s.n_predict)


def timing(trials: pd.DataFrame, stats: Mapping[int, Mapping[str, float]]) -> list[TimingRow]:
    """Time of a round by part for every method on tasks; `stats` gives each trial's own counts and times by its id.

    A method pays where its MGL exceeds ``T_round / T_plain``, both means over all rounds on the same target.
    Raises: AnalysisError without tasks.
    """
    own = task_trials(trials)
    good = own[(own["arm"] == "sd") & own["valid"].fillna(False) & (own["rounds"].fillna(0) > 0)]
    plain = _plain_round_ms(own)
    found = []
    for key, group in good.groupby(_ARM, dropna=False, sort=False):
        named: dict[str, Any] = dict(zip(_ARM, key, strict=True))
        rounds = int(group["rounds"].sum())
        totals = _totals([stats.get(int(i), {}) for i in group["trial_id"]])
        match, no_match = totals.get("match_rounds", 0.0), totals.get("no_match_rounds", 0.0)
        parts = {part.removesuffix("_ns"): float(group[part].sum()) / rounds / 1e6 for part in PARTS}
        plain_ms = plain.get(str(named["target"]))
        found.append(
            TimingRow(
                target=str(named["target"]),
                method=method_name(str(named["drafter"]), _words(named["draft"]), _words(named["options"]) or ""),
                gamma=int(named["gamma"]),
                rounds=rounds,
                ms_per_round=parts,
                mgl=float(group["committed"].sum()) / rounds,
                break_even_mgl=sum(parts.values()) / plain_ms if plain_ms else None,
                inside_ms={
                    name.removesuffix("_ns"): total / rounds / 1e6
                    for name, total in totals.items()
                    if name.endswith("_ns") and "match" not in name
                },
                match_rate=match / (match + no_match) if match + no_match else None,
                match_ms=totals["match_propose_ns"] / match / 1e6 if match else None,
                no_match_ms=totals["no_match_propose_ns"] / no_match / 1e6 if no_match else None,
            )
        )
    return found


def _plain_round_ms(trials: pd.DataFrame) -> dict[str, float]:
    """Mean length of a round of plain decoding, by target."""
    plain = trials[(trials["arm"] == "ar") & trials["valid"].fillna(False) & (trials["rounds"].fillna(0) > 0)]
    sums = plain.groupby("target")[["parts_ns", "rounds"]].sum()
    return {str(target): float(row.parts_ns) / float(row.rounds) / 1e6 for target, row in sums.iterrows()}


def _words(value: Any) -> str | None:
    return None if pd.isna(value) else str(value)


def _totals(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for stats in each:
        for name, value in stats.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals

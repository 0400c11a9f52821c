"""Drafting methods beside each other: speedup and MGL for each kind of task, and where the time of a round goes.

The tables of the small-model study (seed 004, tables 4, 6 and 7) for any models. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from mlsd.analysis.results.round_split import RoundSplit, round_split, stat_totals
from mlsd.errors import AnalysisError
from mlsd.planning.tasks import KINDS, TASK_KEY
from mlsd.records import Record
from mlsd.stats import grouped
from mlsd.trials.decisions import Effect
from mlsd.trials.results import ArmResult
from mlsd.trials.sums import sums_of_row
from mlsd.units import NS_PER_MS, format_bytes, quoted


class MethodRow(NamedTuple):
    """One method on one target, over all tasks and on each kind."""

    overall: ArmResult
    by_kind: dict[str, ArmResult]  # kinds that were measured


class TimingRow(Record, frozen=True, kw_only=True):
    """Where a method's rounds spend their time."""

    arm: ArmResult
    split: RoundSplit
    stats: dict[str, float]  # see `stat_totals`

    @property
    def draft_pass_ms(self) -> float | None:
        """A pass of the draft, for methods that make it of the target."""
        return self._a_pass("draft_forward_ns", NS_PER_MS)

    @property
    def draft_pass_bytes(self) -> float | None:
        return self._a_pass("draft_read_bytes", 1)

    def _a_pass(self, name: str, unit: float) -> float | None:
        stats = self.stats
        return stats[name] / stats["draft_steps"] / unit if "draft_read_bytes" in stats else None


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
        MethodRow(one, dict(sorted(apart.get(_key(one), {}).items(), key=lambda item: _place(item[0])))) for one in own
    ]


def _place(kind: str) -> tuple[int, str]:
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind)


def _key(one: ArmResult) -> tuple[Any, ...]:
    return one.question.suite, one.question.target, one.arm, one.question.n_predict, one.session


def timing(pooled: Iterable[ArmResult], outcomes: pd.DataFrame | None = None) -> list[TimingRow]:
    """Time of a round by part for every method on tasks; `outcomes` (`frames.outcomes`) tell rounds with a proposal.

    Trials whose times are not the method's are left out. Raises: AnalysisError without tasks.
    """
    found = []
    for one in tasks(pooled):
        own = [row for row in one.trials if row.trial.valid and row.trial.decode_ns and row.whole.rounds]
        if own and not one.is_plain:
            # The cases of these trials have no others that count.
            kinds = None if outcomes is None else outcomes[outcomes["case_id"].isin({r.trial.case_id for r in own})]
            rounds = [] if kinds is None else [sums_of_row(row) for row in kinds.to_dict("records")]
            found.append(TimingRow(arm=one, split=round_split(own, rounds), stats=stat_totals(own)))
    return found


def sentences(
    rows: Sequence[TimingRow], efficiencies: Mapping[str, Mapping[int, float]], source: str
) -> tuple[str, ...]:
    """What a wider pass costs each target, then each method on it: committed against needed, and what takes the time.

    `efficiencies` are T(1)/T(k) by target and k, `source` is the database to store a calibration in.
    """
    result: list[str] = []
    for target, own in grouped(rows, lambda row: row.arm.case.target.id).items():
        result.append(_wider(target, efficiencies.get(target, {}), source))
        result += [text for row in own if (text := _verdict(row))]
    return tuple(result)


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
    "not decided yet": "is not decided to pay",
}


def _verdict(row: TimingRow) -> str | None:
    """None where plain decoding of the target was not timed."""
    arm, split, needed = row.arm, row.split, row.arm.break_even_mgl
    if needed is None:
        return None
    total_ms = sum(split.ms_per_round.values())
    part, ms = max(split.ms_per_round.items(), key=lambda item: item[1])
    text = (
        f"{arm.arm.name}, gamma {arm.case.gamma}, {_PAYS[arm.effect]} on {arm.case.target.id}: a round commits "
        f"{arm.mgl or 0.0:.2f} tokens and takes {needed:.2f} plain rounds, {100 * ms / total_ms:.0f} % of it in {part}"
    )
    if split.found is not None and split.not_found is not None:
        share = split.found.rounds / (split.found.rounds + split.not_found.rounds)
        costly = split.found.ms["round"] / total_ms * needed
        text += f"; the {100 * share:.0f} % of rounds with a proposal take {costly:.1f} plain rounds each"
    if row.draft_pass_ms is not None and row.draft_pass_bytes is not None:
        share = row.draft_pass_ms * needed / total_ms
        saves = "saves" if share < 1 else "saves no"
        read = format_bytes(round(row.draft_pass_bytes))
        text += f"; a pass of its draft reads {read} and {saves} time: {share:.2f} plain rounds"
    return text + "."

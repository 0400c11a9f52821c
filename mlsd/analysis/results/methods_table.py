"""Drafting methods beside each other: speedup and MGL for each kind of task, and where the time of a round goes.

The tables of the small-model study (seed 004, tables 4, 6 and 7) for any models. Draws nothing.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from mlsd.analysis.results.round_split import RoundSplit, round_split
from mlsd.errors import AnalysisError
from mlsd.planning.prompts import KINDS, TASK_KEY
from mlsd.trials.results import ArmResult


class MethodRow(NamedTuple):
    """One method on one target, over all tasks and on each kind."""

    overall: ArmResult
    by_kind: dict[str, ArmResult]  # kinds that were measured


class TimingRow(NamedTuple):
    """Where a method's rounds spend their time."""

    arm: ArmResult
    split: RoundSplit


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


def timing(pooled: Iterable[ArmResult]) -> list[TimingRow]:
    """Time of a round by part for every method on tasks.

    Trials whose times are not the method's are left out. Raises: AnalysisError without tasks.
    """
    found = []
    for one in tasks(pooled):
        own = [row for row in one.trials if row.trial.valid and row.trial.decode_ns and row.whole.rounds]
        if own and not one.is_plain:
            found.append(TimingRow(one, round_split(own)))
    return found

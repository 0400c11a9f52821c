"""What the rounds of each arm of a study come to: acceptance by position, and how many were accepted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from mlsd.records import Record
from mlsd.trials.arms import arm_named

_ARM = ["target", "drafter", "draft", "options", "gamma"]


def _by_arm(outcomes: pd.DataFrame, trials: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    cases = trials.loc[trials["arm"] == "sd", ["environment_key", "case_id", *_ARM]].drop_duplicates()
    joined = outcomes.merge(cases, on=["environment_key", "case_id"], how="inner")
    yield from joined.groupby(_ARM, dropna=False, sort=False)


class AcceptedCounts(Record, frozen=True, kw_only=True):
    """How many tokens the rounds of an arm accepted."""

    target: str
    setting: str
    gamma: int
    rounds: tuple[int, ...]  # by accepted tokens, from 0 on

    @property
    def shares(self) -> tuple[float, ...]:
        n = sum(self.rounds)
        return tuple(count / n for count in self.rounds)


def accepted_counts(outcomes: pd.DataFrame, trials: pd.DataFrame) -> list[AcceptedCounts]:
    """The histogram of accepted tokens a round, of each speculative arm's valid trials."""
    found = []
    for (target, drafter, draft, options, gamma), group in _by_arm(outcomes, trials):
        counts = group.groupby("accepted")["rounds"].sum()
        rounds = tuple(int(counts.get(n, 0)) for n in range(int(counts.index.max()) + 1))
        arm = arm_named(drafter, None if pd.isna(draft) else draft, options or "", int(gamma))
        found.append(AcceptedCounts(target=target, setting=arm.setting, gamma=int(gamma), rounds=rounds))
    return found


def position_acceptance(outcomes: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Acceptance at each position of a draft, by target, drafter, draft, options and gamma.

    Columns: those keys, position i, tried (rounds that proposed i and accepted i - 1), overall = P(accepted >= i |
    proposed >= i), conditional = P(accepted >= i | accepted >= i - 1, proposed >= i).
    """
    rows = []
    for key, group in _by_arm(outcomes, trials):
        for i in range(1, int(group["proposed"].max()) + 1):
            offered = group[group["proposed"] >= i]
            reached = offered.loc[offered["accepted"] >= i - 1, "rounds"].sum()
            passed = offered.loc[offered["accepted"] >= i, "rounds"].sum()
            n = offered["rounds"].sum()
            rows.append((*key, i, int(reached), passed / n, passed / reached if reached else math.nan))
    return pd.DataFrame(rows, columns=[*_ARM, "position", "tried", "overall", "conditional"])

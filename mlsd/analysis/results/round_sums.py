"""What the rounds of each arm of a study come to: acceptance by position."""

from __future__ import annotations

import math

import pandas as pd

_ARM = ["target", "drafter", "draft", "options", "gamma"]


def position_acceptance(outcomes: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Acceptance at each position of a draft, by target, drafter, draft, options and gamma.

    Columns: those keys, position i, tried (rounds that proposed i and accepted i - 1), overall = P(accepted >= i |
    proposed >= i), conditional = P(accepted >= i | accepted >= i - 1, proposed >= i).
    """
    cases = trials.loc[trials["arm"] == "sd", ["environment_key", "case_id", *_ARM]].drop_duplicates()
    joined = outcomes.merge(cases, on=["environment_key", "case_id"], how="inner")
    rows = []
    for key, group in joined.groupby(_ARM, dropna=False, sort=False):
        for i in range(1, int(group["proposed"].max()) + 1):
            offered = group[group["proposed"] >= i]
            reached = offered.loc[offered["accepted"] >= i - 1, "rounds"].sum()
            passed = offered.loc[offered["accepted"] >= i, "rounds"].sum()
            n = offered["rounds"].sum()
            rows.append((*key, i, int(reached), passed / n, passed / reached if reached else math.nan))
    return pd.DataFrame(rows, columns=[*_ARM, "position", "tried", "overall", "conditional"])

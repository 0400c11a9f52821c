"""What the rounds of each arm of a study come to: time by part, and acceptance by position in the draft."""

from __future__ import annotations

import math

import pandas as pd

from mlsd.trials.sums import PARTS


def time_split(trials: pd.DataFrame) -> pd.DataFrame:
    """Mean time of a round by part, for each arm of valid trials.

    Columns target, arm, drafter, draft, options, gamma, rounds, draft_ms, verify_ms, rollback_ms, sample_ms, other_ms.
    """
    good = trials[trials["valid"].fillna(False) & (trials["rounds"].fillna(0) > 0) & trials["decode_ns"].notna()]
    keys = ["target", "arm", "drafter", "draft", "options", "gamma"]
    sums = good.groupby(keys, dropna=False, sort=False)[["rounds", *PARTS]].sum().reset_index()
    for part in PARTS:
        sums[part.replace("_ns", "_ms")] = sums[part].astype(float) / sums["rounds"].astype(float) / 1e6
    # A method without a draft has None here, as everywhere; grouping makes it a NaN, which equals nothing.
    sums["draft"] = sums["draft"].astype(object).where(sums["draft"].notna(), None)
    return sums.drop(columns=list(PARTS))


def position_acceptance(outcomes: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Acceptance at each position of a draft, by target, drafter, draft, options and gamma.

    Columns: those keys, position i, tried (rounds that proposed i and accepted i - 1), overall = P(accepted >= i |
    proposed >= i), conditional = P(accepted >= i | accepted >= i - 1, proposed >= i).
    """
    keys = ["target", "drafter", "draft", "options", "gamma"]
    cases = trials.loc[trials["arm"] == "sd", ["environment_key", "case_id", *keys]].drop_duplicates()
    joined = outcomes.merge(cases, on=["environment_key", "case_id"], how="inner")
    rows = []
    for key, group in joined.groupby(keys, dropna=False, sort=False):
        for i in range(1, int(group["proposed"].max()) + 1):
            offered = group[group["proposed"] >= i]
            reached = offered.loc[offered["accepted"] >= i - 1, "rounds"].sum()
            passed = offered.loc[offered["accepted"] >= i, "rounds"].sum()
            n = offered["rounds"].sum()
            rows.append((*key, i, int(reached), passed / n, passed / reached if reached else math.nan))
    return pd.DataFrame(rows, columns=[*keys, "position", "tried", "overall", "conditional"])

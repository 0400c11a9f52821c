"""What the trials of a study say: paired speedups with verdicts, throughput, acceptance, time splits, count identities.

Works on the frames of `frames`. Refuses to put times of different machines, builds, models or samplings together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd

from mlsd.analysis.results.frames import PARTS
from mlsd.analysis.results.names import arm_name
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import Interval, paired_ratio

Effect = Literal["faster", "slower", "undecided"]

ARM = ("environment_key", "comparable", "target", "drafter", "options", "draft", "gamma", "n_predict")
_PAIRED_BY = ["environment_key", "comparable", "prompt_key", "n_predict", "suite", "block", "repeat"]
PARTS_TOLERANCE = 0.02  # how far the parts of a trial's rounds may sum to other than its decode time
POWER = 0.8  # chance of a decided verdict at the smallest effect a run could have seen


def one_machine(trials: pd.DataFrame) -> pd.DataFrame:
    """The same frame. Raises AnalysisError when it is empty or holds trials of several machines or builds."""
    if trials.empty:
        raise AnalysisError("The study holds no trials.", hint="Measure something first: mlsd run.")
    keys = trials["environment_key"].dropna().unique()
    if len(keys) > 1:
        raise AnalysisError(
            f"The study mixes {len(keys)} machines or builds; their times do not compare.",
            hint=f"Choose one of {', '.join(map(str, keys))}.",
        )
    return trials


# --- speedup ----------------------------------------------------------------------------------------------------


class Speedup(Record, frozen=True, kw_only=True):
    """One SD arm against the AR arm of the same blocks. Throughputs are medians over blocks."""

    target: str
    drafter: str
    draft: str | None
    gamma: int
    options: str
    n_predict: int
    suite: str | None  # None: over all suites
    prompt: str | None  # None: over all prompts
    workload: str | None  # None: over all workloads
    comparable: str
    ratio: Interval | None  # None: no valid pair
    n_blocks: int
    n_trials: int
    n_valid: int
    decode_tok_s: float | None
    baseline_tok_s: float | None
    acceptance_rate: float | None
    mgl: float | None
    smallest_effect: float | None  # the ratio - 1 that so many blocks of such spread show 4 times in 5
    invalid_reason: str | None
    timed: bool = True  # False: valid trials, but their times are not the method's
    fell_back: str | None = None  # why a draft that should share the target's memory keeps its own instead

    @property
    def effect(self) -> Effect:
        """Whether the interval excludes 1, and on which side; undecided without an interval."""
        if self.ratio is None or self.ratio.low is None or self.ratio.high is None:
            return "undecided"
        if self.ratio.low > 1.0:
            return "faster"
        return "slower" if self.ratio.high < 1.0 else "undecided"

    @property
    def setting(self) -> str:
        """The arm in words: ``tiny-draft, gamma 4``."""
        return f"{self.name}, gamma {self.gamma}"

    @property
    def name(self) -> str:
        """The method in words."""
        extra = "" if self.fell_back is None else " (not sync)"
        return arm_name(self.drafter, self.draft, self.options) + extra


def pairs(trials: pd.DataFrame) -> pd.DataFrame:
    """Valid SD trials with the throughput of the valid AR trial of their block.

    Adds `baseline_tok_s`, `ratio` and `baseline_id`; trials without a partner are left out. A block measured more than
    once on purpose (``--fresh``) pairs with the latest.
    """
    measured = trials[trials["valid"].fillna(False) & trials["decode_tok_s"].notna()]
    plain = measured[measured["arm"] == "ar"].sort_values("trial_id").drop_duplicates(_PAIRED_BY, keep="last")
    baseline = plain[[*_PAIRED_BY, "decode_tok_s", "trial_id"]]
    baseline = baseline.rename(columns={"decode_tok_s": "baseline_tok_s", "trial_id": "baseline_id"})
    joined = measured[measured["arm"] == "sd"].merge(baseline, on=_PAIRED_BY, how="inner")
    joined["ratio"] = joined["decode_tok_s"] / joined["baseline_tok_s"]
    return joined


def speedups(trials: pd.DataFrame, by: Sequence[str] = ("suite",)) -> list[Speedup]:
    """Every SD arm with its paired speedup, pooled over what `by` (suite, prompt, workload) does not name.

    The ratio is the geometric mean over blocks, its interval Student's t on the mean log ratio (`stats.paired_ratio`):
    what a bootstrap over blocks tends to with many blocks, and honest with few. Raises AnalysisError when machines are
    mixed.
    """
    one_machine(trials)
    keys = [*ARM, *by]
    paired = pairs(trials)
    by_arm: dict[Any, pd.DataFrame] = dict(iter(paired.groupby(keys, dropna=False))) if len(paired) else {}
    found = []
    for key, group in trials[trials["arm"] == "sd"].groupby(keys, dropna=False, sort=False):
        matched = by_arm.get(key)
        found.append(_speedup(dict(zip(keys, key, strict=True)), group, matched))
    order = {target: i for i, target in enumerate(dict.fromkeys(trials["target"]))}
    return sorted(found, key=lambda s: (order[s.target], s.suite or "", s.drafter, s.draft or "", s.gamma))


def _speedup(key: dict[str, Any], trials: pd.DataFrame, paired: pd.DataFrame | None) -> Speedup:
    ratio = None
    if paired is not None:
        ratio = paired_ratio(list(paired["decode_tok_s"]), list(paired["baseline_tok_s"]))
    valid = trials[trials["valid"].fillna(False)]
    fallbacks = valid["fell_back"].dropna()
    reasons = trials.loc[~trials["valid"].fillna(False), ["error", "invalid_reason"]].bfill(axis=1).iloc[:, 0].dropna()
    return Speedup(
        suite=_text(key.get("suite")),
        prompt=_text(key.get("prompt")),
        workload=_text(key.get("workload")),
        target=str(key["target"]),
        drafter=str(key["drafter"]),
        draft=_text(key["draft"]),
        comparable=str(key["comparable"]),
        options=_text(key["options"]) or "",
        gamma=int(key["gamma"]),
        n_predict=int(key["n_predict"]),
        ratio=ratio,
        n_blocks=0 if paired is None else len(paired),
        n_trials=len(trials),
        n_valid=len(valid),
        decode_tok_s=None if paired is None else float(paired["decode_tok_s"].median()),
        baseline_tok_s=None if paired is None else float(paired["baseline_tok_s"].median()),
        acceptance_rate=_rate(valid, "accepted", "proposed"),
        mgl=_rate(valid, "committed", "rounds"),
        smallest_effect=smallest_effect(ratio),
        invalid_reason=None if reasons.empty else str(reasons.iloc[0]),
        timed=valid.empty or bool(valid["decode_ns"].notna().any()),
        fell_back=None if fallbacks.empty else str(fallbacks.iloc[0]),
    )


def smallest_effect(ratio: Interval | None) -> float | None:
    """The effect that blocks like these would have shown with a chance of 80 %; None without an interval.

    ``exp((t_0.975 + t_0.8) se) - 1`` with n - 1 degrees of freedom and ``se = ln(high / low) / (2 t_0.975)``
    (Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988, for paired means of log ratios).
    """
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    from scipy.stats import t

    two_sided, power = float(t.ppf(0.975, ratio.n - 1)), float(t.ppf(POWER, ratio.n - 1))
    error = math.log(ratio.high / ratio.low) / 2 / two_sided
    exponent = (two_sided + power) * error
    return math.expm1(exponent) if exponent < 700 else math.inf


# --- throughput, acceptance, time -------------------------------------------------------------------------------


class Throughput(Record, frozen=True, kw_only=True):
    """Plain decoding of one target: mean and standard deviation of decode tok/s over its trials."""

    target: str
    comparable: str
    suite: str | None
    prompt: str | None
    mean_tok_s: float
    sd_tok_s: float | None
    n: int


def baselines(trials: pd.DataFrame, by: Sequence[str] = ()) -> list[Throughput]:
    """Throughput of the valid AR trials of each target, pooled over what `by` (suite, prompt) does not name."""
    one_machine(trials)
    plain = trials[(trials["arm"] == "ar") & trials["valid"].fillna(False) & trials["decode_tok_s"].notna()]
    keys = ["target", "comparable", *by]
    found = []
    for key, group in plain.groupby(keys, dropna=False, sort=False):
        named = dict(zip(keys, key, strict=True))
        speeds = group["decode_tok_s"]
        found.append(
            Throughput(
                target=str(named["target"]),
                comparable=str(named["comparable"]),
                suite=_text(named.get("suite")),
                prompt=_text(named.get("prompt")),
                mean_tok_s=float(speeds.mean()),
                sd_tok_s=float(speeds.std()) if len(speeds) > 1 else None,
                n=len(speeds),
            )
        )
    return found


def time_split(trials: pd.DataFrame) -> pd.DataFrame:
    """Mean time of a round by part, for each arm of valid trials.

    Columns target, arm, drafter, draft, gamma, rounds, draft_ms, verify_ms, rollback_ms, sample_ms, other_ms.
    """
    good = trials[trials["valid"].fillna(False) & (trials["rounds"].fillna(0) > 0) & trials["decode_ns"].notna()]
    keys = ["target", "arm", "drafter", "draft", "gamma"]
    good = good.assign(draft=good["draft"].astype(object).where(good["draft"].notna(), None))
    sums = good.groupby(keys, dropna=False, sort=False)[["rounds", *PARTS]].sum().reset_index()
    for part in PARTS:
        sums[part.replace("_ns", "_ms")] = sums[part].astype(float) / sums["rounds"].astype(float) / 1e6
    return sums.drop(columns=list(PARTS))


def position_acceptance(outcomes: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Acceptance at each position of a draft, by target, drafter, draft and gamma.

    Columns: those keys, position i, tried (rounds that proposed i and accepted i - 1), overall = P(accepted >= i |
    proposed >= i), conditional = P(accepted >= i | accepted >= i - 1, proposed >= i).
    """
    keys = ["target", "drafter", "draft", "gamma"]
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


def pass_times(outcomes: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Time of the target passes inside the rounds: columns target, k (rows of the pass), repeat, passes, ms (mean)."""
    timed = trials[trials["decode_ns"].notna()]
    cases = timed[["environment_key", "case_id", "target"]].drop_duplicates()
    joined = outcomes.merge(cases, on=["environment_key", "case_id"], how="inner")
    joined["k"] = joined["proposed"] + 1
    sums = joined.groupby(["target", "k", "repeat"], sort=True)[["rounds", "verify_ns"]].sum().reset_index()
    sums["ms"] = sums["verify_ns"].astype(float) / sums["rounds"].astype(float) / 1e6
    return sums.rename(columns={"rounds": "passes"})[["target", "k", "repeat", "passes", "ms"]]


# --- identities -------------------------------------------------------------------------------------------------


class Contradiction(Record, frozen=True, kw_only=True):
    """A trial whose own figures do not agree."""

    trial_id: int
    rule: str
    sentence: str


def contradictions(trials: pd.DataFrame) -> list[Contradiction]:
    """Finished trials that break an identity.

    tokens = 1 + sum committed; sum committed = rounds + accepted (one less when an accepted end-of-generation token
    ended the output, so that no bonus followed); the parts of the rounds sum to the decode time within 2 %.
    """
    done = trials[(trials["status"] == "ok") & (trials["rounds"].fillna(0) > 0)]
    found = []
    columns = ["trial_id", "n_tokens", "rounds", "accepted", "committed", "parts_ns", "decode_ns"]
    for row in done[columns].to_dict("records"):
        trial_id, committed = int(row["trial_id"]), row["committed"]
        if row["n_tokens"] != committed + 1:
            text = f"{row['n_tokens']} tokens, but the first and {committed} committed by rounds"
            found.append(Contradiction(trial_id=trial_id, rule="tokens", sentence=text))
        if row["rounds"] + row["accepted"] - committed not in (0, 1):
            text = f"{committed} tokens committed by {row['rounds']} rounds with {row['accepted']} accepted"
            found.append(Contradiction(trial_id=trial_id, rule="committed", sentence=text))
        if pd.notna(row["decode_ns"]) and abs(row["parts_ns"] - row["decode_ns"]) > PARTS_TOLERANCE * row["decode_ns"]:
            parts, whole = row["parts_ns"] / 1e6, row["decode_ns"] / 1e6
            text = f"the parts of its rounds sum to {parts:.2f} ms, its decode time is {whole:.2f} ms"
            found.append(Contradiction(trial_id=trial_id, rule="parts", sentence=text))
    return found


def _rate(trials: pd.DataFrame, above: str, below: str) -> float | None:
    divisor = int(trials[below].sum())
    return int(trials[above].sum()) / divisor if divisor else None


def _text(value: Any) -> str | None:
    return None if value is None or pd.isna(value) else str(value)

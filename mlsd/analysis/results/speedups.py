"""What each arm of a study gives: its speedup in pairs with a verdict, and the throughput of plain decoding.

Works on the frames of `frames`. Refuses to put times of different machines, builds, models or samplings together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pandas as pd

from mlsd.analysis.results.paired_trials import pair_up
from mlsd.errors import AnalysisError
from mlsd.records import CONTROLS, Record
from mlsd.stats import Interval
from mlsd.trials.arms import Arm, arm_named
from mlsd.trials.decisions import Effect, Standing, Timing, effect_of, standings
from mlsd.trials.fates import fate
from mlsd.trials.pairs import Timed, speedup
from mlsd.trials.sums import share

ARM = ("environment_key", "comparable", "target", "drafter", "options", "draft", "gamma", "n_predict")


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
    ratio: Interval | None  # over prompts, with one prompt over its blocks; None: no valid pair
    n_blocks: int
    n_trials: int
    n_valid: int
    decode_tok_s: float | None
    baseline_tok_s: float | None
    acceptance_rate: float | None
    mgl: float | None
    invalid_reason: str | None
    standing: Standing | None = None  # where all arms of the target were decided together, and this one is sound
    timed: bool = True  # False: valid trials, but their times are not the method's
    fell_back: str | None = None  # why a draft that should share the target's memory keeps its own instead

    @property
    def effect(self) -> Effect:
        """What is decided of it, or what its own interval says."""
        return effect_of(self.ratio) if self.standing is None else self.standing.effect

    @property
    def arm(self) -> Arm:
        """What was measured."""
        return arm_named(self.drafter, self.draft, self.options, self.gamma)

    @property
    def setting(self) -> str:
        """The arm in words: ``tiny-draft, gamma 4``."""
        return self.arm.setting + self._extra

    @property
    def name(self) -> str:
        """The arm in words, without its gamma."""
        return self.arm.name + self._extra

    @property
    def _extra(self) -> str:
        return "" if self.fell_back is None else " (not sync)"


def speedups(trials: pd.DataFrame, by: Sequence[str] = ("suite",), *, together: bool = False) -> list[Speedup]:
    """Every SD arm with its paired speedup, pooled over what `by` (suite, prompt, workload) does not name.

    The ratio is the geometric mean over blocks of a prompt, then over prompts, its interval Student's t over prompts,
    with one prompt over its blocks (`stats.independent`): of each arm alone, as planned. With `together` intervals of
    all arms of a target hold together, at every look (`trials.decisions`), as a choice among them needs it; an arm with
    a trial that is not valid has none then. Raises AnalysisError when machines are mixed.
    """
    one_machine(trials)
    keys = [*ARM, *by]
    paired = pair_up(trials)
    by_arm: dict[Any, pd.DataFrame] = dict(iter(paired.groupby(keys, dropna=False))) if len(paired) else {}
    found = []
    for key, group in trials[trials["arm"] == "sd"].groupby(keys, dropna=False, sort=False):
        matched = by_arm.get(key)
        found.append(_speedup(dict(zip(keys, key, strict=True)), group, matched))
    if together:
        found = [one for _, own in trials.groupby(["target", "source"]) for one in _together(own, by, found)]
    order = {target: i for i, target in enumerate(dict.fromkeys(trials["target"]))}
    return sorted(found, key=lambda s: (order[s.target], s.suite or "", s.drafter, s.draft or "", s.gamma))


_ENDED = ("status", "valid", "rollback_target", "disturbed", "failed_native_calls", "verdict")
_MEASURED = ("run_id", "arm", "drafter", "draft", "options", "gamma", "prompt", "block", "decode_tok_s", *_ENDED)


def _together(trials: pd.DataFrame, by: Sequence[str], found: Sequence[Speedup]) -> Iterator[Speedup]:
    """The arms of these trials of one target, their intervals those of one decision for each group."""
    names = ["comparable", "target", "n_predict", *by]
    own = trials[[*dict.fromkeys(("trial_id", "source", *names, *_MEASURED))]].sort_values("trial_id")
    rows = own.astype(object).where(own.notna(), None).to_dict("records")
    decisions = standings(
        (
            Timing(
                group=tuple(str(row[name]) for name in names),
                arm=None if row["arm"] == "ar" else _arm(row).setting,
                place=(row["prompt"], row["block"]),
                tok_s=row["decode_tok_s"],
                fate=fate(*(row[name] for name in _ENDED)),
                control=row["drafter"] in CONTROLS,
                session=row["run_id"],
            )
            for row in rows
        ),
        apart=rows[0]["source"] == "server",
    )
    groups = {tuple(str(row[name]) for name in names) for row in rows}
    for one in found:
        place = tuple(str(getattr(one, name)) for name in names)
        if place in groups:
            decision = decisions.get(place)
            standing = None if decision is None else decision.of(one.arm.setting)
            alone = None if one.ratio is None else Interval(value=one.ratio.value, n=one.ratio.n)
            yield msgspec.structs.replace(one, ratio=standing.ratio if standing else alone, standing=standing)


def _arm(row: Mapping[Any, Any]) -> Arm:
    return arm_named(row["drafter"], row["draft"], row["options"] or "", row["gamma"])


class DeepArm(NamedTuple):
    """An arm behind some depth of other text."""

    found: Speedup
    prompt: str  # without its depth
    depth: int  # tokens before the prompt
    plain_ms: float  # mean pass of plain decoding
    verify_ms: float  # mean verification of the arm


def deep_arms(trials: pd.DataFrame) -> list[DeepArm]:
    """Every arm of prompts that were also measured behind other text (``code@1024``), by depth; none where none was."""
    names = trials["prompt"].astype(str)
    base = names.str.partition("@")[0]
    trials = trials[base.isin(base[names.str.contains("@", regex=False)])]
    valid = trials[trials["valid"].fillna(False)].fillna({"draft": "", "options": ""})
    found = []
    for arm in speedups(trials, ("prompt",)) if len(trials) else ():
        own = valid[(valid["prompt"] == arm.prompt) & (valid["target"] == arm.target)]
        asked = {"drafter": arm.drafter, "draft": arm.draft or "", "options": arm.options, "gamma": arm.gamma}
        both = own[own["arm"] == "ar"], own[(own[list(asked)] == pd.Series(asked)).all(axis=1)]
        plain_ms, verify_ms = (rows["verify_ns"].sum() / max(1, rows["rounds"].sum()) / 1e6 for rows in both)
        prompt, _, depth = str(arm.prompt).partition("@")
        found.append(DeepArm(arm, prompt, int(depth or 0), plain_ms, verify_ms))
    return sorted(found, key=lambda row: (row.found.target, row.found.setting, row.prompt, row.depth))


def _speedup(key: dict[str, Any], trials: pd.DataFrame, paired: pd.DataFrame | None) -> Speedup:
    ratio = None
    if paired is not None:
        blocks = zip(paired["suite"], paired["block"], paired["repeat"], strict=True)
        both = zip(paired["baseline_tok_s"], paired["decode_tok_s"], paired["prompt"], blocks, strict=True)
        ratio = speedup([(Timed(plain, *place), Timed(own, *place)) for plain, own, *place in both])
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
        invalid_reason=None if reasons.empty else str(reasons.iloc[0]),
        timed=valid.empty or bool(valid["decode_ns"].notna().any()),
        fell_back=None if fallbacks.empty else str(fallbacks.iloc[0]),
    )


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


def _rate(trials: pd.DataFrame, above: str, below: str) -> float | None:
    return share(int(trials[above].sum()), int(trials[below].sum()))


def _text(value: Any) -> str | None:
    return None if value is None or pd.isna(value) else str(value)

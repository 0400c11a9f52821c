"""Speedups in pairs: each SD trial beside the AR trial of its block, with what a round of it cost.

Reads rows with the columns of the store's `trial_summary`; claims and fits read these pairs. Only valid trials count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from mlsd.errors import AnalysisError
from mlsd.records import DRAFT_MODEL, Case, ModelFacts, Record
from mlsd.stats import Interval

# Columns of `trial_summary` that are read here.
COLUMNS = (
    "trial_id",
    "environment_key",
    "case_id",
    "arm",
    "target",
    "drafter",
    "draft",
    "gamma",
    "prompt",
    "block",
    "repeat",
    "status",
    "valid",
    "n_prompt",
    "n_predict",
    "n_tokens",
    "decode_ns",
    "rounds",
    "proposed",
    "accepted",
    "committed",
    "draft_ns",
    "verify_ns",
    "rollback_ns",
    "sample_ns",
    "other_ns",
)


class Pair(Record, frozen=True, kw_only=True):
    """One SD trial against the AR trial of its block. Times are means over its rounds, in ms."""

    trial_id: int
    baseline_id: int
    target: str
    drafter: str
    draft: str | None
    options: str = ""  # of the drafter: "ngram=3,length=10"
    component: str | None = None  # the part of the target that drafts, where it is one
    gamma: int
    prompt: str
    n_prompt: int
    block: int
    repeat: int
    speedup: float
    t_one_ms: float  # decode time a token of the AR trial
    mgl: float
    proposed: int
    accepted: int
    rounds: int
    draft_ms: float
    verify_ms: float
    rest_ms: float  # rollback, sampling and bookkeeping

    @property
    def round_ms(self) -> float:
        """Length of a round."""
        return self.draft_ms + self.verify_ms + self.rest_ms


class Evidence(Record, frozen=True, kw_only=True):
    """Pairs of one machine and build, and what the models' files say."""

    pairs: tuple[Pair, ...]
    models: dict[str, ModelFacts]  # by id
    n_unpaired: int = 0  # valid SD trials without a valid AR trial in their block
    n_invalid: int = 0
    n_other_settings: int = 0  # trials of a target left out: other file, sampling or engine options than most
    # SD trial id -> perplexity of the drafting part alone over that of the whole model, where it was measured
    perplexity_ratios: dict[int, float] = msgspec.field(default_factory=dict)

    def draft_models(self) -> list[Pair]:
        """Pairs of plain drafting with a second model: one chain a round. Trees count their tokens in another way."""
        return [pair for pair in self.pairs if pair.drafter == DRAFT_MODEL]

    def mixture(self, target: str) -> bool:
        """Whether the target routes to experts."""
        facts = self.models.get(target)
        return bool(facts and facts.n_experts)


def evidence(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    models: Mapping[str, ModelFacts] | None = None,
    perplexity_ratios: Mapping[int, float] | None = None,
    cases: Mapping[str, Case] | None = None,
) -> Evidence:
    """Pair the trials of a study. `models` may be keyed by anything; ids are read from the records.

    `cases` by id tell trials of one target apart that differ in file, sampling or engine options; the kind that most
    trials have is kept, as times of different kinds do not average.

    Raises AnalysisError when a column is missing, nothing was measured, or machines or builds are mixed.
    """
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise AnalysisError(f"The table of trials has no column {', '.join(missing)}.")
    trials = [dict(zip(columns, row, strict=True)) for row in rows]
    if not trials:
        raise AnalysisError("The study holds no trials.", hint="Measure something first: mlsd run.")
    environments = {trial["environment_key"] for trial in trials}
    if len(environments) > 1:
        raise AnalysisError(
            f"The study mixes {len(environments)} machines or builds, whose times cannot be compared.",
            hint="Give a database of one machine and one build.",
        )
    measured = [t for t in trials if t["status"] == "ok" and t["valid"] and t["decode_ns"] and t["n_tokens"] > 1]
    good = _of_one_setting(measured, cases or {})
    baselines = {(t["target"], t["block"], t["repeat"], t["prompt"]): t for t in good if t["arm"] == "ar"}
    speculative = [t for t in good if t["arm"] == "sd" and t["rounds"]]
    paired = [(t, baselines.get((t["target"], t["block"], t["repeat"], t["prompt"]))) for t in speculative]
    facts = {record.ref.id: record for record in (models or {}).values()}
    return Evidence(
        pairs=tuple(
            _pair(trial, baseline, (cases or {}).get(trial["case_id"]))
            for trial, baseline in paired
            if baseline is not None
        ),
        models=facts,
        perplexity_ratios=dict(perplexity_ratios or {}),
        n_unpaired=sum(baseline is None for _, baseline in paired),
        n_other_settings=len(measured) - len(good),
        n_invalid=sum(1 for t in trials if t["status"] == "ok" and not t["valid"]),
    )


def _of_one_setting(trials: list[dict[str, Any]], cases: Mapping[str, Case]) -> list[dict[str, Any]]:
    """The trials of each target that share the most common file, sampling and engine options."""

    def setting(trial: Mapping[str, Any]) -> tuple[object, ...]:
        case = cases.get(trial["case_id"])
        return () if case is None else (case.target.sha256, repr(case.sampling), repr(case.engine))

    counts: dict[str, Counter[tuple[object, ...]]] = {}
    for trial in trials:
        counts.setdefault(trial["target"], Counter())[setting(trial)] += 1
    usual = {target: counter.most_common(1)[0][0] for target, counter in counts.items()}
    return [trial for trial in trials if setting(trial) == usual[trial["target"]]]


def _pair(trial: Mapping[str, Any], baseline: Mapping[str, Any], case: Case | None) -> Pair:
    options = {} if case is None else case.drafter.options
    ar_ms = baseline["decode_ns"] / (baseline["n_tokens"] - 1) / 1e6
    sd_ms = trial["decode_ns"] / (trial["n_tokens"] - 1) / 1e6
    rounds = trial["rounds"]
    rest = trial["rollback_ns"] + trial["sample_ns"] + trial["other_ns"]
    return Pair(
        trial_id=trial["trial_id"],
        baseline_id=baseline["trial_id"],
        target=trial["target"],
        drafter=trial["drafter"],
        draft=trial["draft"],
        options=",".join(f"{name}={value}" for name, value in sorted(options.items())),
        component=str(options["component"]) if options.get("component") else None,
        gamma=trial["gamma"],
        prompt=trial["prompt"],
        n_prompt=trial["n_prompt"] or 0,
        block=trial["block"],
        repeat=trial["repeat"],
        speedup=ar_ms / sd_ms,
        t_one_ms=ar_ms,
        mgl=trial["committed"] / rounds,
        proposed=trial["proposed"],
        accepted=trial["accepted"],
        rounds=rounds,
        draft_ms=trial["draft_ns"] / rounds / 1e6,
        verify_ms=trial["verify_ns"] / rounds / 1e6,
        rest_ms=rest / rounds / 1e6,
    )


def over_groups(values: Sequence[float], groups: Sequence[object], *, ratio: bool = False) -> Interval:
    """Mean with Student's t interval over groups that share no noise (blocks, prompts); equal weight to each group.

    `ratio` takes the geometric mean of positive values. One group gives no interval. Raises AnalysisError of nothing.
    """
    if not values:
        raise AnalysisError("No value was measured, so there is no mean.")
    numbers = np.log(values) if ratio else np.asarray(values, dtype=float)
    places: dict[object, int] = {}
    index = [places.setdefault(group, len(places)) for group in groups]
    means = np.bincount(index, numbers) / np.bincount(index)
    centre, n = float(np.mean(means)), len(means)
    if n < 2:
        return Interval(value=float(np.exp(centre)) if ratio else centre, n=n)
    from scipy.stats import t

    half = float(t.ppf(0.975, n - 1)) * float(np.std(means, ddof=1)) / np.sqrt(n)
    bounds = centre, centre - half, centre + half
    value, low, high = (float(np.exp(b) if ratio else b) for b in bounds)
    return Interval(value=value, low=low, high=high, n=n)

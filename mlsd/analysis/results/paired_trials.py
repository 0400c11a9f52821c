"""Speedups in pairs: each SD trial beside the AR trial of its block, with what a round of it cost.

The one pairing of stored trials: speedups, claims and fits read it. Only valid trials count.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec
import pandas as pd

from mlsd.errors import AnalysisError
from mlsd.records import DRAFT_MODEL, Case, ModelFacts, Record
from mlsd.stats import independent, paired
from mlsd.trials.sums import sums_of_row

# What an SD trial and its AR trial have in common: the columns of `measure.store.rows.pair_key`.
_SHARED = ["environment_key", "comparable", "prompt_key", "n_predict", "suite", "block", "repeat"]


def pair_up(trials: pd.DataFrame) -> pd.DataFrame:
    """Valid SD trials that have a valid AR trial in their block, beside its columns `baseline_id`, `baseline_tok_s`.

    Adds `ratio`, SD over AR throughput. A block measured more than once on purpose (``--fresh``) pairs with the latest.
    """
    good = trials[trials["valid"].fillna(False) & trials["decode_tok_s"].notna()].sort_values("trial_id")
    keys = list(zip(*(good[name] for name in _SHARED), strict=True))
    arms = good["arm"].tolist()
    plain, others = ([i for i, arm in enumerate(arms) if arm == kind] for kind in ("ar", "sd"))
    pairs = paired(plain, others, keys.__getitem__)
    baseline, joined = good.iloc[[i for i, _ in pairs]], good.iloc[[i for _, i in pairs]].reset_index(drop=True)
    joined["baseline_id"] = baseline["trial_id"].array
    joined["baseline_tok_s"] = baseline["decode_tok_s"].array
    joined["ratio"] = joined["decode_tok_s"] / joined["baseline_tok_s"]
    return joined


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
    def noise_group(self) -> tuple[str, str, int, int]:
        """Pairs of one block share its noise."""
        return (self.target, self.prompt, self.block, self.repeat)

    @property
    def round_ms(self) -> float:
        """Length of a round."""
        return self.draft_ms + self.verify_ms + self.rest_ms


def groups_of(pairs: Sequence[Pair]) -> Sequence[Hashable]:
    """What shares no noise among pairs: prompts, of one prompt blocks."""
    return independent([pair.prompt for pair in pairs], [pair.noise_group for pair in pairs])


class PairedTrials(Record, frozen=True, kw_only=True):
    """Pairs that may be compared, and what the models' files say."""

    pairs: tuple[Pair, ...]
    models: dict[str, ModelFacts]  # by id
    # SD trial id -> perplexity of the drafting part alone over that of the whole model, where it was measured
    perplexity_ratios: dict[int, float] = msgspec.field(default_factory=dict)
    place: str = ""  # machine and backend, for sentences
    profile: str | None = None

    def draft_models(self) -> list[Pair]:
        """Pairs of plain drafting with a second model: one chain a round. Trees count their tokens in another way."""
        return [pair for pair in self.pairs if pair.drafter == DRAFT_MODEL]

    def mixture(self, target: str) -> bool:
        """Whether the target routes to experts."""
        facts = self.models.get(target)
        return bool(facts and facts.n_experts)


def pair_trials(trials: pd.DataFrame, cases: Mapping[str, Case], **more: Any) -> PairedTrials:
    """Pair the trials that may be compared; `more` are the other fields of `PairedTrials`.

    Of our own engine alone: what a round of a server cost is not known in its parts.

    Raises AnalysisError when nothing was measured.
    """
    if trials.empty:
        raise AnalysisError("The study holds no trials.", hint="Measure something first: mlsd run.")
    joined = pair_up(trials[trials["n_tokens"].gt(1).fillna(False)])
    usable = joined[joined["rounds"].gt(0).fillna(False)]
    rows = usable.astype(object).where(usable.notna(), None).to_dict("records")
    own = [(row, cases[str(row["case_id"])]) for row in rows]
    return PairedTrials(
        pairs=tuple(_pair(row, case) for row, case in own if case.source == "engine"),
        **more,
    )


def _pair(row: Mapping[Any, Any], case: Case) -> Pair:
    options, counted = case.drafter.options, sums_of_row(row)
    ms = counted.ms_per_round
    return Pair(
        trial_id=row["trial_id"],
        baseline_id=row["baseline_id"],
        target=row["target"],
        drafter=row["drafter"],
        draft=row["draft"],
        options=",".join(f"{name}={value}" for name, value in sorted(options.items())),
        component=str(options["component"]) if options.get("component") else None,
        gamma=row["gamma"],
        prompt=row["prompt"],
        n_prompt=row["n_prompt"] or 0,
        block=row["block"],
        repeat=row["repeat"],
        speedup=row["ratio"],
        t_one_ms=1e3 / row["baseline_tok_s"],
        mgl=counted.committed / counted.rounds,
        proposed=counted.proposed,
        accepted=counted.accepted,
        rounds=counted.rounds,
        draft_ms=ms["draft"],
        verify_ms=ms["verify"],
        rest_ms=ms["rollback"] + ms["sample"] + ms["other"],
    )

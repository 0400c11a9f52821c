"""Pairs as a frame: each speculative trial beside plain decoding of its block, with what the models' files say.

Of valid trials of our own engine alone: what a round of a server cost is not known in its parts. Claims, equations and
fits are expressions over this frame.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlsd.errors import AnalysisError
from mlsd.records import DRAFT_MODEL, ModelFacts
from mlsd.trials.acceptance import loop_of
from mlsd.trials.arms import options_text
from mlsd.trials.results import ArmResult, TrialPair, counting
from mlsd.trials.sums import speed

if TYPE_CHECKING:
    import pandas as pd

# Columns and their types; times are means over the rounds of a trial, in ms.
COLUMNS: dict[str, str] = {
    "trial_id": "int64", "baseline_id": "int64", "target": "object", "drafter": "object", "draft": "object",
    "options": "object",  # of the drafter, as in `Arm.options`
    "component": "object",  # the part of the target that drafts, where it is one
    "gamma": "int64", "prompt": "object", "n_prompt": "int64", "block": "int64", "repeat": "int64",
    "started_s": "float64",  # since 1970
    "loops": "bool",  # whether its output repeats itself to the end
    "speedup": "float64",
    "t_one_ms": "float64",  # decode time a token of the plain trial
    "mgl": "float64", "proposed": "int64", "accepted": "int64", "rounds": "int64", "draft_ms": "float64",
    "verify_ms": "float64",
    "rest_ms": "float64",  # rollback, sampling and bookkeeping
}  # fmt: skip
# What a model's file says, of the target, and of the draft as `draft_...`; 0 where it is not known.
FACTS: dict[str, str] = {
    "mixture": "bool", "parameters": "float64", "active": "float64", "weight_bytes": "float64",
    "architecture": "object",
    "shape": "object",  # equal for quantizations of one model
}  # fmt: skip


@dataclass(frozen=True)
class PairedTrials:
    """Pairs that may be compared, and what else decides a claim."""

    pairs: pd.DataFrame  # columns `COLUMNS`, `FACTS`, `draft_parameters`, `perplexity_ratio`
    plain: pd.DataFrame  # trials of plain decoding, each beside itself
    models: Mapping[str, ModelFacts] = field(default_factory=dict)  # by id
    place: str = ""  # machine and backend, for sentences
    profile: str | None = None
    memory_gb_s: float | None = None  # what memory gave on this machine, where it was measured

    @property
    def drafted(self) -> pd.DataFrame:
        """Pairs of plain drafting with a second model: one chain a round. Trees count their tokens in another way."""
        return self.pairs[(self.pairs["drafter"] == DRAFT_MODEL) & (self.pairs["proposed"] > 0)]


def pair_trials(
    results: Iterable[ArmResult], models: Mapping[str, ModelFacts], ratios: Mapping[int, float], **more: Any
) -> PairedTrials:
    """The pairs of these arms; `ratios` are perplexities of drafting parts over those of whole models, by trial.

    `more` are the other fields of `PairedTrials`. Raises AnalysisError when nothing was measured.
    """
    found = list(results)
    if not found:
        raise AnalysisError("The study holds no trials.", hint="Measure something first: mlsd run.")
    pairs = [pair for one in found if one.question.source == "engine" and one.n_valid for pair in one.pairs]
    alone = [TrialPair(one, one) for arm in found if arm.is_plain and arm.n_valid for one in counting(arm.trials)]
    plain = [one for one in alone if one.own.case.source == "engine" and speed(one.own.trial)]
    own, beside = pair_frame(pairs, models, ratios), pair_frame(plain, models, ratios)
    return PairedTrials(pairs=own, plain=beside, models=models, **more)


def pair_frame(
    pairs: Iterable[TrialPair], models: Mapping[str, ModelFacts], ratios: Mapping[int, float] | None = None
) -> pd.DataFrame:
    """One row a pair with rounds: columns `COLUMNS` and what the models' files say."""
    return with_facts([_row(one) for one in pairs if one.own.whole.rounds], models, ratios or {})


def with_facts(
    rows: Sequence[Mapping[str, Any]], models: Mapping[str, ModelFacts], ratios: Mapping[int, float]
) -> pd.DataFrame:
    """The frame of rows that have the `COLUMNS`."""
    import pandas as pd

    frame = pd.DataFrame.from_records([dict(row) for row in rows], columns=list(COLUMNS)).astype(COLUMNS)
    known = pd.DataFrame.from_records(
        [(name, *_facts(models.get(name))) for name in {*frame["target"], *frame["draft"].dropna()}],
        columns=["id", *FACTS],
    ).astype(FACTS)
    frame = frame.merge(known, left_on="target", right_on="id", how="left").drop(columns="id")
    drafts = known[["id", "parameters"]].rename(columns={"id": "draft", "parameters": "draft_parameters"})
    frame = frame.merge(drafts, on="draft", how="left")
    frame["perplexity_ratio"] = frame["trial_id"].map(dict(ratios)).astype("float64")
    frame["round_ms"] = frame["draft_ms"] + frame["verify_ms"] + frame["rest_ms"]
    return frame


def units_of(pairs: pd.DataFrame) -> pd.Series[Any]:
    """What shares no noise among pairs: prompts where there are several, else repeats.

    Blocks of several targets that read one text in one repeat are one unit: text and machine are common to them.
    """
    return pairs["prompt"] if pairs["prompt"].nunique() > 1 else pairs["repeat"].astype(str)


def _facts(facts: ModelFacts | None) -> tuple[Any, ...]:
    if facts is None:
        return False, 0, 0, 0, "", ""
    shape = (facts.architecture, facts.n_layers, facts.n_embd, facts.n_experts, facts.n_parameters)
    return (
        bool(facts.n_experts), facts.n_parameters or 0, facts.n_parameters_active or 0, facts.weight_bytes or 0,
        facts.architecture, " ".join(map(str, shape)),
    )  # fmt: skip


def _row(one: TrialPair) -> dict[str, Any]:
    """What a round of a trial cost, beside plain decoding in its block."""
    case, trial, whole = one.own.case, one.own.trial, one.own.whole
    options, ms, plain_tok_s = case.drafter.options, whole.ms_per_round, speed(one.plain.trial)
    assert plain_tok_s is not None and whole.mgl is not None
    return {
        "trial_id": one.own.id,
        "baseline_id": one.plain.id,
        "target": case.target.id,
        "drafter": case.drafter.name,
        "draft": case.drafter.draft.id if case.drafter.draft else None,
        "options": options_text(case.drafter),
        "component": str(options["component"]) if options.get("component") else None,
        "gamma": case.gamma,
        "prompt": case.prompt.key,
        "n_prompt": trial.n_prompt or 0,
        "block": trial.block,
        "repeat": trial.repeat,
        "started_s": datetime.datetime.fromisoformat(trial.started_at).timestamp(),
        "loops": loop_of(trial.tokens) is not None,
        "speedup": one.ratio,
        "t_one_ms": 1e3 / plain_tok_s,
        "mgl": whole.mgl,
        "proposed": whole.proposed,
        "accepted": whole.accepted,
        "rounds": whole.rounds,
        "draft_ms": ms["draft"],
        "verify_ms": ms["verify"],
        "rest_ms": ms["rollback"] + ms["sample"] + ms["other"],
    }

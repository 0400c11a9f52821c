"""What claims, equations and fits compute on: the frame of pairs with what else decides, and what its units are.

Of valid trials of our own engine alone: what a round of a server cost is not known in its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mlsd.analysis import frames
from mlsd.errors import AnalysisError
from mlsd.records import DRAFT_MODEL, ModelFacts
from mlsd.trials.rates import speed
from mlsd.trials.results import ArmResult, TrialPair, counting

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PairedTrials:
    """Pairs that may be compared, and what else decides a claim."""

    pairs: pd.DataFrame  # columns `frames.PAIRS`
    plain: pd.DataFrame  # trials of plain decoding, each beside itself
    models: Mapping[str, ModelFacts] = field(default_factory=dict)  # by id
    machine_name: str = ""  # machine and backend, for sentences
    profile: str | None = None
    memory_gb_s: float | None = None  # what memory gave on this machine, where it was measured

    @cached_property
    def unlooped(self) -> PairedTrials:
        """Without the pairs whose output repeats itself to its end."""
        return replace(self, pairs=self.pairs[~self.pairs["loops"]])

    @cached_property
    def drafted(self) -> pd.DataFrame:
        """Pairs of plain drafting with a second model: one chain a round. Trees count their tokens in another way."""
        return self.pairs[(self.pairs["drafter"] == DRAFT_MODEL) & (self.pairs["proposed"] > 0)]


def pair_trials(
    results: Iterable[ArmResult], models: Mapping[str, ModelFacts], ratios: Mapping[int, float], **more: Any
) -> PairedTrials:
    """The pairs of these arms; `ratios` are perplexities of drafting parts over those of whole models, by trial.

    `more` are the other fields of `PairedTrials`. Raises AnalysisError when nothing was measured.
    """
    arms = list(results)
    if not arms:
        raise AnalysisError("The study holds no trials.", hint="Measure something first: mlsd run.")
    pairs = [pair for one in arms if one.question.source == "engine" and one.n_valid for pair in one.pairs]
    beside_itself = [
        TrialPair(one, one) for arm in arms if arm.is_plain and arm.n_valid for one in counting(arm.trials)
    ]
    plain = [one for one in beside_itself if one.measured.case.source == "engine" and speed(one.measured.trial)]
    drafted, alone = (frames.pairs(some, models, ratios) for some in (pairs, plain))
    return PairedTrials(pairs=drafted, plain=alone, models=models, **more)


def units_of(pairs: pd.DataFrame) -> pd.Series[Any]:
    """What shares no noise among pairs: prompts where there are several, else repeats.

    Blocks of several targets that read one text in one repeat are one unit: text and machine are common to them.
    """
    return pairs["prompt"] if pairs["prompt"].nunique() > 1 else pairs["repeat"].astype(str)

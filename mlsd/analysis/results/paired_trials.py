"""What a round of each trial cost, beside plain decoding in its block: what claims and fits read.

Of valid trials of our own engine alone: what a round of a server cost is not known in its parts.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import msgspec

from mlsd.errors import AnalysisError
from mlsd.records import DRAFT_MODEL, ModelFacts, Record
from mlsd.trials.arms import options_text
from mlsd.trials.results import ArmResult, TrialPair, counting
from mlsd.trials.sums import speed


class Pair(Record, frozen=True, kw_only=True):
    """One SD trial against the AR trial of its block. Times are means over its rounds, in ms."""

    trial_id: int
    baseline_id: int
    target: str
    drafter: str
    draft: str | None
    options: str = ""  # of the drafter, as in `Arm.options`
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
        return self.draft_ms + self.verify_ms + self.rest_ms


def groups_of(pairs: Sequence[Pair]) -> Sequence[Hashable]:
    """What shares no noise among pairs: prompts where there are several, else blocks (those of one share its text)."""
    prompts = [pair.prompt for pair in pairs]
    return prompts if len(set(prompts)) > 1 else [(pair.target, pair.block, pair.repeat) for pair in pairs]


class PairedTrials(Record, frozen=True, kw_only=True):
    """Pairs that may be compared, and what the models' files say."""

    pairs: tuple[Pair, ...]
    plain: tuple[Pair, ...] = ()  # trials of plain decoding, each beside itself
    models: dict[str, ModelFacts]  # by id
    # SD trial id -> perplexity of the drafting part alone over that of the whole model, where it was measured
    perplexity_ratios: dict[int, float] = msgspec.field(default_factory=dict)
    place: str = ""  # machine and backend, for sentences
    profile: str | None = None
    memory_gb_s: float | None = None  # what memory gave on this machine, where it was measured

    def draft_models(self) -> list[Pair]:
        """Pairs of plain drafting with a second model: one chain a round. Trees count their tokens in another way."""
        return [pair for pair in self.pairs if pair.drafter == DRAFT_MODEL]

    def mixture(self, target: str) -> bool:
        """Whether the target routes to experts."""
        facts = self.models.get(target)
        return bool(facts and facts.n_experts)


def pair_trials(results: Iterable[ArmResult], **more: Any) -> PairedTrials:
    """The pairs of these arms; `more` are the other fields of `PairedTrials`.

    Raises AnalysisError when nothing was measured.
    """
    found = list(results)
    if not found:
        raise AnalysisError("The study holds no trials.", hint="Measure something first: mlsd run.")
    pairs = [pair for one in found if one.question.source == "engine" and one.n_valid for pair in one.pairs]
    alone = [TrialPair(one, one) for arm in found if arm.is_plain and arm.n_valid for one in counting(arm.trials)]
    own = [one for one in alone if one.own.case.source == "engine" and speed(one.own.trial) and one.own.whole.rounds]
    return PairedTrials(
        pairs=tuple(as_pair(one) for one in pairs if one.own.whole.rounds), plain=tuple(map(as_pair, own)), **more
    )


def as_pair(one: TrialPair) -> Pair:
    """What a round of a trial cost, beside plain decoding in its block."""
    case, trial, whole = one.own.case, one.own.trial, one.own.whole
    options, ms, plain_tok_s = case.drafter.options, whole.ms_per_round, speed(one.plain.trial)
    assert plain_tok_s is not None and whole.mgl is not None
    return Pair(
        trial_id=one.own.id,
        baseline_id=one.plain.id,
        target=case.target.id,
        drafter=case.drafter.name,
        draft=case.drafter.draft.id if case.drafter.draft else None,
        options=options_text(case.drafter),
        component=str(options["component"]) if options.get("component") else None,
        gamma=case.gamma,
        prompt=case.prompt.key,
        n_prompt=trial.n_prompt or 0,
        block=trial.block,
        repeat=trial.repeat,
        speedup=one.ratio,
        t_one_ms=1e3 / plain_tok_s,
        mgl=whole.mgl,
        proposed=whole.proposed,
        accepted=whole.accepted,
        rounds=whole.rounds,
        draft_ms=ms["draft"],
        verify_ms=ms["verify"],
        rest_ms=ms["rollback"] + ms["sample"] + ms["other"],
    )

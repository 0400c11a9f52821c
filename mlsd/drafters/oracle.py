"""Reference arms, no methods: drafts that are right as often as asked, by the target's own recorded plain output.

Always right and free is the most that speculation can give on a target, never right is what verification costs, and
rates by position are what any drafter of that acceptance would give here: acceptance belongs to models and text, the
cost to the machine. The text stays that of plain decoding, so losslessness is judged as of any other arm.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from mlsd.drafters.chain import Chain, EarlyStop, Predictor
from mlsd.drafters.draft_model import chain_context, open_memory
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.engine.drafter import Drafter
from mlsd.engine.verify import NOTHING, Proposal, Verification
from mlsd.errors import UnsupportedError

_STRATA = 16  # rounds in which the lengths that are accepted come as often as they should
_GOLDEN = (5**0.5 - 1) / 2


def accepted_lengths(rates: Sequence[float], longest: int, rng: np.random.Generator) -> Iterator[int]:
    """How many tokens of each round's draft are right, without end: of as little variance as a random order allows.

    `rates` are the chances of a token after the one before it; the last one goes on. A round accepts n or more with
    ``S_n = r_1 ... r_n``: n is how many S lie above u. Of 16 rounds each 1/16 of [0, 1) holds one u, in random order,
    and they shift by the golden ratio from one 16 to the next, so that long runs reach each S to one round in all.
    """
    survival, reached = list[float](), 1.0
    for position in range(longest):
        reached *= rates[min(position, len(rates) - 1)]
        survival.append(reached)
    shift = float(rng.random())
    while True:
        for stratum in rng.permutation(_STRATA):
            u = (stratum + shift) / _STRATA
            yield sum(u < reached for reached in survival)
        shift = (shift + _GOLDEN) % 1.0


class Replay(Drafter):
    """Proposes from the recorded output of a prompt; what a trial wrote otherwise (a tie) takes its place."""

    def __init__(
        self,
        plain: Callable[[Sequence[int]], Sequence[int]],
        n_vocab: int,
        gamma: int,
        rates: Sequence[float] = (1.0,),
        proposing: float = 1.0,
        seed: int = 0,
    ) -> None:
        """`plain` gives the target's plain greedy output after a prompt; `proposing` is the share of rounds that draft.

        One seed draws alike for each generation.
        """
        self._plain, self._n_vocab, self._gamma = plain, n_vocab, gamma
        self._rates, self._proposing, self._seed = rates, proposing, seed
        self._records: dict[tuple[int, ...], list[int]] = {}
        self._record: list[int] = []
        self._n_committed = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Look the output up, or have it written: that is no drafting and is not timed; draw what will be wrong."""
        key = tuple(prompt)
        if key not in self._records:
            self._records[key] = list(self._plain(key))
        self._record, self._n_committed = self._records[key], 0
        draws = np.random.default_rng(self._seed)
        # How far a wrong token is from the right one, never nought: drawing takes longer than a pass of a tiny model.
        self._steps = draws.integers(1, self._n_vocab, len(self._record)).tolist()
        self._lengths = list(itertools.islice(accepted_lengths(self._rates, self._gamma, draws), len(self._record)))
        self._n_rounds = 0

    def propose(self, k: int) -> Proposal:
        self._n_rounds += 1
        n_drafts, at = int(self._n_rounds * self._proposing), self._n_committed
        if n_drafts == int((self._n_rounds - 1) * self._proposing):
            return NOTHING
        right, steps = self._record[at : at + k], self._steps[at : at + k]
        n_right = self._lengths[n_drafts - 1] if n_drafts <= len(self._lengths) else 0
        wrong = ((t + s) % self._n_vocab for t, s in zip(right[n_right:], steps[n_right:], strict=False))
        return Proposal(tokens=(*right[:n_right], *wrong))

    def observe(self, verification: Verification) -> None:
        """Go on behind what was committed, which is on record from now on."""
        n_before, self._n_committed = self._n_committed, self._n_committed + len(verification.committed)
        self._record[n_before : self._n_committed] = verification.committed


class ReplayedChain(Chain):
    """A chain that is grown and paid for as any other, while recorded tokens stand in place of those it would take."""

    def __init__(self, setup: DrafterSetup, replay: Replay) -> None:
        super().__init__(setup.clock, setup.opening.case.sampling)
        self._replay = replay

    def start(self, k: int) -> None:
        self._script = self._replay.propose(k).tokens
        super().start(max(1, len(self._script)))

    def extend(self, outputs: Predictor) -> bool:
        more = super().extend(outputs)
        self.tokens[-1:] = self._script[len(self.tokens) - 1 : len(self.tokens)]
        return more


class ReplayedDraft(ChainDrafter):
    """A draft model whose passes run and cost what they cost, and whose proposals are those of a replay."""

    def __init__(self, memory: OwnMemory, chain: ReplayedChain, replay: Replay) -> None:
        super().__init__(memory, chain)
        self._replay = replay

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._replay.begin(prompt, rng)
        super().begin(prompt, rng)

    def observe(self, verification: Verification) -> None:
        self._replay.observe(verification)
        super().observe(verification)


def _recorded(setup: DrafterSetup) -> Callable[[Sequence[int]], Sequence[int]]:
    """What a control replays. Raises: UnsupportedError where tokens are drawn, so that no record says what comes."""
    if not setup.opening.case.sampling.greedy:
        raise UnsupportedError(
            f"{setup.opening.case.drafter.name} replays greedy output; sampled output is not known in advance.",
            hint="Leave --temperature at 0 for it.",
        )
    return setup.plain


def _replay(setup: DrafterSetup, rates: Sequence[float], proposing: float = 1.0, seed: int = 0) -> Replay:
    n_vocab = setup.target.tokenizer.vocabulary.n_tokens
    return Replay(_recorded(setup), n_vocab, setup.opening.case.gamma, rates, proposing, seed)


def parse_rates(text: str | float) -> tuple[float, ...]:
    """``0.83``, or by position ``0.9/0.8/0.7``. Raises: ValueError for what is no chance."""
    rates = tuple(float(part) for part in str(text).split("/"))
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"{text} holds a chance that is not from 0 to 1")
    return rates


@drafting_method(
    "oracle",
    summary="A control, not a method: drafts that are right as often as told (always, if nothing is), and free, or at "
    "the cost of a draft model (draft=MODEL).",
    source="mlsd; the bound is the acceptance of 1 and the cost of 0 in Leviathan et al. 2023 (arXiv 2211.17192), "
    "section 3.3; synthetic acceptance of least variance is SemiAnalysis InferenceX's (issue 1651)",
    takes_draft=True,
)
class OracleOptions(MethodOptions, frozen=True, kw_only=True):
    """What a control is to be right of."""

    accept: Annotated[
        str | float,
        Meta(description="chance of a token after the one before it, or by position 0.9/0.8/0.7, the last goes on"),
    ] = 1.0
    propose: Annotated[float, Meta(gt=0, le=1, description="share of rounds that draft at all, as of a look-up")] = 1.0
    seed: Annotated[int, Meta(ge=0, description="of the order in which drafts are right and wrong")] = 0

    def __post_init__(self) -> None:
        parse_rates(self.accept)

    def open(self, setup: DrafterSetup) -> Drafter:
        replay = _replay(setup, parse_rates(self.accept), self.propose, self.seed)
        if setup.second_path is None:
            return replay
        return ReplayedDraft(open_memory(setup), ReplayedChain(setup, replay), replay)

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        if opening.case.drafter.draft is None:
            return opening.on_target()
        return opening.with_draft(chain_context(opening, EarlyStop()))


@drafting_method(
    "random",
    summary="A control, not a method: random drafts that are always wrong, which is what verification alone costs.",
    source="mlsd",
)
class RandomOptions(MethodOptions, frozen=True, kw_only=True):
    """The control takes no options."""

    def open(self, setup: DrafterSetup) -> Replay:
        return _replay(setup, (0.0,))

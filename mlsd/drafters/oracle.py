"""Two bounds that nobody can use: the target's own plain output as drafts that cost nothing, and drafts never right.

The former is the most that speculation can give on a target, the latter what verification costs.
"""

from collections.abc import Callable, Sequence

import numpy as np

from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.engine.drafter import Drafter
from mlsd.engine.verify import Proposal, Verification
from mlsd.errors import UnsupportedError


class Replay(Drafter):
    """Proposes from the recorded output of a prompt; what a trial wrote otherwise (a tie) takes its place."""

    def __init__(self, plain: Callable[[Sequence[int]], Sequence[int]]) -> None:
        """`plain` gives the target's plain greedy output after a prompt."""
        self._plain = plain
        self._records: dict[tuple[int, ...], list[int]] = {}
        self._record: list[int] = []
        self._n_committed = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Look the output up, or have it written: that is no drafting and not timed as such."""
        key = tuple(prompt)
        if key not in self._records:
            self._records[key] = list(self._plain(key))
        self._record, self._n_committed = self._records[key], 0

    def propose(self, k: int) -> Proposal:
        return Proposal(tokens=tuple(self._record[self._n_committed : self._n_committed + k]))

    def observe(self, verification: Verification) -> None:
        """Go on behind what was committed, which is on record from now on."""
        n_before, self._n_committed = self._n_committed, self._n_committed + len(verification.committed)
        self._record[n_before : self._n_committed] = verification.committed


class NeverRight(Replay):
    """Random tokens, none of which stands in the record at its place."""

    def __init__(self, plain: Callable[[Sequence[int]], Sequence[int]], n_vocab: int) -> None:
        super().__init__(plain)
        self._n_vocab = n_vocab

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Also draw how far each proposal is from the record: drawing takes longer than a pass of a tiny model."""
        super().begin(prompt, rng)
        self._steps = rng.integers(1, self._n_vocab, len(self._record)).tolist()

    def propose(self, k: int) -> Proposal:
        right, steps = super().propose(k).tokens, self._steps[self._n_committed :]
        return Proposal(tokens=tuple((t + s) % self._n_vocab for t, s in zip(right, steps, strict=False)))


def recorded(setup: DrafterSetup) -> Callable[[Sequence[int]], Sequence[int]]:
    """What a control replays. Raises: UnsupportedError where tokens are drawn, so that no record says what comes."""
    if not setup.opening.case.sampling.greedy:
        raise UnsupportedError(
            f"{setup.opening.case.drafter.name} replays greedy output; sampled output is not known in advance.",
            hint="Leave --temperature at 0 for it.",
        )
    return setup.plain


@drafting_method(
    "oracle",
    summary="A bound, not a method: drafts that are always right and free, the most that speculation can give here.",
    source="mlsd; the acceptance of 1 and the cost of 0 in Leviathan et al. 2023 (arXiv 2211.17192), section 3.3",
)
class OracleOptions(MethodOptions, frozen=True, kw_only=True):
    """The bound takes no options."""

    def open(self, setup: DrafterSetup) -> Replay:
        return Replay(recorded(setup))


@drafting_method(
    "random",
    summary="A control, not a method: random drafts that are always wrong, which is what verification alone costs.",
    source="mlsd",
)
class RandomOptions(MethodOptions, frozen=True, kw_only=True):
    """The control takes no options."""

    def open(self, setup: DrafterSetup) -> NeverRight:
        return NeverRight(recorded(setup), setup.target.tokenizer.vocabulary.n_tokens)

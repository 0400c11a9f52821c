"""What verification costs when nothing is accepted: random drafts, each one wrong by construction."""

from collections.abc import Callable, Sequence

import numpy as np

from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.oracle import Replay, recorded
from mlsd.engine.verify import Proposal


class Wrong(Replay):
    """Random tokens, none of which stands in the record at its place."""

    def __init__(self, plain: Callable[[Sequence[int]], Sequence[int]], n_vocab: int) -> None:
        super().__init__(plain)
        self._n_vocab = n_vocab

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Also draw how far each proposal is from the record: drawing takes longer than a pass of a tiny model."""
        super().begin(prompt, rng)
        self._steps = rng.integers(1, self._n_vocab, len(self._record)).tolist()

    def propose(self, k: int) -> Proposal:
        steps = self._steps[self._n_committed :]
        return Proposal(tokens=tuple((t + s) % self._n_vocab for t, s in zip(self._coming(k), steps, strict=False)))


@drafting_method(
    "random",
    summary="A control, not a method: random drafts that are always wrong, which is what verification alone costs.",
    source="mlsd",
)
class Options(MethodOptions, frozen=True, kw_only=True):
    """The control takes no options."""

    def open(self, setup: DrafterSetup) -> Wrong:
        return Wrong(recorded(setup), setup.target.tokenizer.vocabulary.n_tokens)

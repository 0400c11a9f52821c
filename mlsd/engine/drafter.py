"""What every drafting method is to the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlsd.engine.tree import Tree
from mlsd.records import Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Draft(Record, frozen=True, kw_only=True):
    """What a drafter proposes for one round."""

    tokens: tuple[int, ...] = ()
    # Distributions the tokens were drawn from, shape (len(tokens), n_vocab); None: the tokens are deterministic.
    probabilities: npt.NDArray[np.float64] | None = None
    tree: Tree | None = None  # continuations that branch, in place of `tokens`; deterministic
    mark_ns: int = 0  # time inside propose spent on saving state for rollback; counted as rollback, not as drafting

    @property
    def n_proposed(self) -> int:
        return len(self.tokens) if self.tree is None else self.tree.n_candidates

    @property
    def n_rows(self) -> int:
        """Positions of the target pass that verifies the draft, the newest committed token included."""
        return 1 + (len(self.tokens) if self.tree is None else len(self.tree.tokens))


class Outcome(Record, frozen=True, kw_only=True):
    """What became of a draft: `committed` are the accepted tokens and the bonus token, in order."""

    accepted: int
    committed: tuple[int, ...]
    riders: tuple[int, ...] = ()  # the target's greedy tokens after the leaves among the tree's riders


class Drafter:
    """A method that proposes tokens (this one never does), for one generation after another on one model load.

    All work belongs into `propose`, `observe` only forgets what was rejected: so drafting and rollback are timed apart.
    """

    rollback_name: str | None = None  # strategy by which the drafter's own memory is rolled back; None: it has none
    fell_back: str | None = None  # why it drafts in another way than was asked for

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Start a generation: forget the last one, take in the prompt; `rng` serves all random choices in it."""

    def propose(self, k: int) -> Draft:
        """At most `k` tokens after all committed ones; a tree has at most gamma candidates, no path longer than `k`."""
        return _EMPTY

    def observe(self, outcome: Outcome) -> None:
        """Take in what was committed. Also called once with the first output token, before any proposal."""

    def stats(self) -> dict[str, float]:
        """Counts and times of the last generation that only this method has, named with units."""
        return {}

    @property
    def failed_native_calls(self) -> int:
        return 0

    def close(self) -> None:
        """Free native handles; calling it twice is harmless."""


class NoDrafter(Drafter):
    """Plain autoregressive decoding: never proposes. The baseline arm runs through the same loop as every method."""


_EMPTY = Draft()

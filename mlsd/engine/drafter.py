"""What every drafting method is to the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlsd.engine.verify import NOTHING, Proposal, Verification

if TYPE_CHECKING:
    import numpy as np


class Drafter:
    """A method that proposes tokens (this one never does), for one generation after another on one model load.

    All work belongs into `propose`, `observe` only forgets what was rejected: so drafting and rollback are timed apart.
    """

    rollback_name: str | None = None  # strategy by which the drafter's own memory is rolled back; None: it has none
    fell_back: str | None = None  # why it drafts in another way than was asked for

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Start a generation: forget the last one, take in the prompt; `rng` serves all random choices in it."""

    def propose(self, k: int) -> Proposal:
        """At most `k` tokens after all committed ones; a tree has at most gamma candidates, no path longer than `k`."""
        return NOTHING

    def observe(self, verification: Verification) -> None:
        """Take in what was committed. Also called once with the first output token, before any proposal."""

    def stats(self) -> dict[str, float]:
        """Counts and times of the last generation that only this method has, named with units."""
        return {}

    @property
    def failed_native_calls(self) -> int:
        return 0

    def close(self) -> None:
        """Free native handles; calling it twice is harmless."""


class WrappedDrafter(Drafter):
    """A drafter around another one, which does what is not done here."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.rollback_name, self.fell_back = inner, inner.rollback_name, inner.fell_back

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self.inner.begin(prompt, rng)

    def propose(self, k: int) -> Proposal:
        return self.inner.propose(k)

    def observe(self, verification: Verification) -> None:
        self.inner.observe(verification)

    def stats(self) -> dict[str, float]:
        return self.inner.stats()

    @property
    def failed_native_calls(self) -> int:
        return self.inner.failed_native_calls

    def close(self) -> None:
        self.inner.close()


class NoDrafter(Drafter):
    """Plain autoregressive decoding: never proposes. The baseline arm runs through the same loop as every method."""

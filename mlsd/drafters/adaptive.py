"""A draft length that adapts to what is accepted, around any method that drafts chains.

The rule is llama.cpp's `draft-mtp-adaptive` (`common/speculative-adaptive.h` of its open pull request 27210, August
2026; b11524 has no such type). It hangs on counts alone, so one text always drafts alike. ik_llama.cpp's
`--spec-autotune` is another rule: it tries lengths at random and keeps those whose rounds were fastest. What both have
besides, `p_min`, ends one draft (`drafters.chain`) and goes with either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from mlsd.engine.drafter import Drafter
from mlsd.engine.verify import Proposal, Verification
from mlsd.records import Record

if TYPE_CHECKING:
    import numpy as np

ADAPTIVE = "adaptive"  # its option, and the word for it among gammas
LEAST, MOST = 3, 12  # llama.cpp's default of --spec-draft-n-min-adaptive, and --spec-draft-n-max as its author advises
_CLIMB = (2, 4, 6, 5, 4, 3)  # drafts in a row that stand whole, before 1 .. 6 tokens become one more; 2 from there on
_LEAST_MISSES, _MISSES = 20, 5  # rejected tokens before the length shrinks: 5 of each of its tokens, 20 at least


class Length(Record, frozen=True, kw_only=True):
    """What may be set of every method that drafts chains."""

    adaptive: Annotated[
        int,
        Meta(ge=0, description="draft from so many tokens up to gamma, as was accepted of late; 0: always up to gamma"),
    ] = 0


class AdaptiveLength:
    """The length N, from `least` to `most` tokens.

    It grows by one after 2, 4, 6, 5, 4, 3 (N = 1 .. 6) or 2 drafts in a row of which every token stood. Above `least`
    it shrinks by one once max(5 N, 20) tokens were rejected, counted anew after a draft that stood whole and each step.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, max(1, most)
        self.tokens = min(max(1, least), self._most)
        self._n_whole = self._n_rejected = 0

    def learn(self, proposed: int, accepted: int) -> None:
        """What became of a draft; a round without one teaches nothing."""
        n = self.tokens
        if not proposed:
            return
        if accepted == proposed:
            self._n_rejected = 0
            self._n_whole += n < self._most
            if self._n_whole >= (_CLIMB[n - 1] if n <= len(_CLIMB) else _CLIMB[0]):
                self.tokens, self._n_whole = n + 1, 0
            return
        self._n_whole = 0
        if n > max(1, self._least):
            self._n_rejected += proposed - accepted
            if self._n_rejected >= max(_MISSES * n, _LEAST_MISSES):
                self.tokens, self._n_rejected = n - 1, 0


class Adaptive(Drafter):
    """Another drafter, asked for as many tokens as the rule has come to; each generation begins at the least."""

    def __init__(self, inner: Drafter, least: int, most: int) -> None:
        self._inner, self._bounds = inner, (least, most)
        self._length, self._n_proposed = AdaptiveLength(least, most), 0
        self.rollback_name, self.fell_back = inner.rollback_name, inner.fell_back

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._length, self._n_proposed = AdaptiveLength(*self._bounds), 0
        self._inner.begin(prompt, rng)

    def propose(self, k: int) -> Proposal:
        proposal = self._inner.propose(min(k, self._length.tokens))
        self._n_proposed = proposal.n_proposed
        return proposal

    def observe(self, verification: Verification) -> None:
        self._length.learn(self._n_proposed, verification.accepted)
        self._n_proposed = 0
        self._inner.observe(verification)

    def stats(self) -> dict[str, float]:
        return self._inner.stats()

    @property
    def failed_native_calls(self) -> int:
        return self._inner.failed_native_calls

    def close(self) -> None:
        self._inner.close()

"""A draft length that adapts to what is accepted, around any method that drafts chains.

The rule is that of llama.cpp's open pull request 27210 (`draft-mtp-adaptive`, `common/speculative-adaptive.h`) in its
head of September 2026, with one bucket; its first head counted drafts and rejected tokens apart, and b11549 has no such
type. It hangs on counts alone, so one text always drafts alike. ik_llama.cpp's `--spec-autotune` is another rule: it
tries lengths at random and keeps those whose rounds were fastest. What both have besides, `p_min`, ends one draft
(`drafters.chain`) and goes with either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from mlsd.engine.drafter import Drafter, WrappedDrafter
from mlsd.engine.verify import Proposal, Verification
from mlsd.records import Record

if TYPE_CHECKING:
    import numpy as np

LEAST, MOST = 3, 12  # llama.cpp's default of --spec-draft-n-min-adaptive, and --spec-draft-n-max as its author advises
_CLIMB = (2, 5, 10, 5, 4, 3)  # what the bucket gains before 1 .. 6 tokens become one more; 2 from there on
_LEAST_DROP, _DROP = 20, 5  # what it loses before the length shrinks: 5 for each token, 20 at least


class Length(Record, frozen=True, kw_only=True):
    """What may be set of every method that drafts chains."""

    adaptive: Annotated[
        int,
        Meta(ge=0, description="draft from so many tokens up to gamma, as was accepted of late; 0: always up to gamma"),
    ] = 0


class AdaptiveLength:
    """The length N, from `least` to `most` tokens, and a bucket that begins at each N with max(5 N, 20).

    A draft adds ``accepted + 1 - N``: one if all N tokens stood, none for one short, -(k - 1) for k short. One that
    `p_min` ended before N and that stood whole adds ``(accepted - N - 1) / 2``, cut towards 0. N grows by one once the
    bucket has gained 2, 5, 10, 5, 4, 3 (N = 1 .. 6) or 2, and shrinks by one once it is empty.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = max(1, least), max(1, most)
        self._step_to(min(self._least, self._most))

    def _step_to(self, n: int) -> None:
        self.tokens, self._bucket = n, _drop(n)

    def learn(self, proposed: int, accepted: int) -> None:
        """What became of a draft; a round without one teaches nothing."""
        n = self.tokens
        if not proposed:
            return
        ended_early = accepted == proposed < n
        self._bucket += -((n + 1 - accepted) // 2) if ended_early else accepted + 1 - n
        full = _drop(n) + (_CLIMB[n - 1] if n <= len(_CLIMB) else _CLIMB[0])
        if self._bucket >= full and n < self._most:
            self._step_to(n + 1)
        elif self._bucket <= 0 and n > self._least:
            self._step_to(n - 1)
        self._bucket = max(0, min(self._bucket, full)) if self.tokens == n else self._bucket


def _drop(n: int) -> int:
    return max(_DROP * n, _LEAST_DROP)


class Adaptive(WrappedDrafter):
    """Another drafter, asked for as many tokens as the rule has come to; each generation begins at the least."""

    def __init__(self, inner: Drafter, least: int, most: int) -> None:
        super().__init__(inner)
        self._bounds = (least, most)
        self._length, self._n_proposed = AdaptiveLength(least, most), 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._length, self._n_proposed = AdaptiveLength(*self._bounds), 0
        super().begin(prompt, rng)

    def propose(self, k: int) -> Proposal:
        proposal = self.inner.propose(min(k, self._length.tokens))
        self._n_proposed = proposal.n_proposed
        return proposal

    def observe(self, verification: Verification) -> None:
        self._length.learn(self._n_proposed, verification.accepted)
        self._n_proposed = 0
        super().observe(verification)

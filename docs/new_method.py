"""The smallest whole drafting method: propose what followed the newest token where it last occurred.

Copy it to ``mlsd/drafters/bigram.py``, enter ``"bigram": KnownMethod("bigram", "look-up")`` in METHODS of
``mlsd/methods.py`` and a row in the matrix of ``tests/drafters/test_exactness.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.options import Range
from mlsd.engine.drafter import Drafter
from mlsd.engine.verify import Proposal, Verification


@drafting_method(
    "bigram",
    summary="Propose what followed the newest token where it last occurred.",
    source="an example of mlsd's documentation",
    space={"longest": Range(low=2, high=16)},
)
class Options(MethodOptions, frozen=True, kw_only=True):
    """What can be set: `mlsd models methods bigram` and the errors for a wrong value come from here."""

    longest: Annotated[int, Meta(ge=1, le=64, description="the most tokens to copy")] = 8

    def open(self, setup: DrafterSetup) -> Bigram:
        return Bigram(self)


class Bigram(Drafter):
    """Remembers where each token occurred last."""

    def __init__(self, options: Options) -> None:
        self._longest = options.longest

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Forget the last generation, and take in the prompt."""
        self._text = list(prompt)
        self._pending: list[int] = []
        self._last = {token: place for place, token in enumerate(prompt[:-1])}

    def observe(self, verification: Verification) -> None:
        """Only keep what was committed: what costs time belongs into `propose`, which is timed as drafting."""
        self._pending += verification.committed

    def propose(self, k: int) -> Proposal:
        """At most `k` tokens; none where the newest token is new."""
        for token in self._pending:
            self._last[self._text[-1]] = len(self._text) - 1
            self._text.append(token)
        self._pending = []
        place = self._last.get(self._text[-1])
        if place is None:
            return Proposal()
        return Proposal(tokens=tuple(self._text[place + 1 : place + 1 + min(k, self._longest)]))

"""N-gram cache: counts what followed each n-gram of the text so far, and proposes only clear favourites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated, Literal

from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters.lookup.text_lookup import TextLookup
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.engine.verify import Proposal

# For n-grams of length 1, 2, 3, 4: how often one must have been seen, and how large the share of its commonest
# continuation must be, in per cent.
_THRESHOLDS = {
    "lax": ((2, 66), (2, 50), (1, 50), (1, 50)),
    "strict": ((4, 75), (3, 66), (2, 66), (2, 66)),
}


@drafting_method(
    "ngram-cache",
    summary=(
        "N-gram cache: propose the token that most often followed the last few, as long as the counts are clear enough."
    ),
    source="llama.cpp's lookup example (common/ngram-cache), its context cache with both sets of thresholds",
)
class NgramCacheOptions(MethodOptions, frozen=True, kw_only=True):
    """Options of the n-gram cache."""

    ngram: Annotated[int, Meta(ge=1, le=4, description="the longest end of the text to look for")] = 4
    thresholds: Annotated[Literal["lax", "strict"], Meta(description="how clear a favourite must be")] = "lax"

    def open(self, setup: DrafterSetup) -> NgramCache:
        return NgramCache(self, setup.clock)


class NgramCache(TextLookup):
    """Counts of one text's continuations."""

    def __init__(self, options: NgramCacheOptions, clock: Clock) -> None:
        self._options, self._thresholds = options, _THRESHOLDS[options.thresholds]
        super().__init__(clock)

    def _forget(self) -> None:
        super()._forget()
        self._text: list[int] = []
        self._counts: dict[tuple[int, ...], Counter[int]] = {}

    def _take_in(self, tokens: Sequence[int]) -> None:
        text = self._text
        for token in tokens:
            end = len(text)
            for n in range(1, min(self._options.ngram, end) + 1):
                self._counts.setdefault(tuple(text[end - n :]), Counter())[token] += 1
            text.append(token)

    def _look_up(self, k: int) -> Proposal:
        tail = self._text[-self._options.ngram :]
        tokens: list[int] = []
        while len(tokens) < k and (token := self._favourite(tail)) is not None:
            tokens.append(token)
            tail = [*tail, token][-self._options.ngram :]
        return Proposal(tokens=tuple(tokens))

    def _favourite(self, tail: Sequence[int]) -> int | None:
        """What most often followed the longest end of `tail` that passes its thresholds."""
        for n in range(len(tail), 0, -1):
            counts = self._counts.get(tuple(tail[-n:]))
            if counts is None:
                continue
            n_seen = counts.total()
            least, percent = self._thresholds[n - 1]
            token, most = max(counts.items(), key=itemgetter(1))
            if n_seen >= least and 100 * most >= percent * n_seen:
                return token
        return None

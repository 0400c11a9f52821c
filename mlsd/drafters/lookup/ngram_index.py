"""Where each short sequence of tokens occurred in a growing text; one step a token, whatever the text's length."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class NgramIndex:
    """Positions of all n-grams of some lengths in a text that only grows.

    An n-gram is entered when the token after it arrives, so the text's own end is never found as a match of itself.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = tuple(lengths)
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.tokens: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        text, places = self.tokens, self._places
        for token in tokens:
            end = len(text)
            for n in self._lengths:
                if n <= end:
                    places.setdefault(tuple(text[end - n :]), []).append(end)
            text.append(token)

    def first(self, n: int, n_follow: int = 1) -> int | None:
        """Where the text goes on after the first place of its last `n` tokens; `n_follow` tokens must be there."""
        places = self._found(n)
        return places[0] if places and places[0] <= len(self.tokens) - n_follow else None

    def last(self, n: int, n_follow: int = 1) -> int | None:
        """The same after the last such place."""
        places = self._found(n)
        i = bisect_right(places, len(self.tokens) - n_follow)
        return places[i - 1] if i else None

    def _found(self, n: int) -> list[int]:
        text = self.tokens
        return self._places.get(tuple(text[-n:]), []) if n <= len(text) else []

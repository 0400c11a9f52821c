"""Output that repeats itself is no text: what is accepted of a loop says nothing of other outputs."""

from __future__ import annotations

import functools

_SHARE = 3  # the last third
_LEAST = 8  # tokens of it: fewer may repeat in any text
_TIMES = 3  # that the period must fit in


@functools.lru_cache(256)  # trials of an arm mostly have one output
def loop_of(tokens: tuple[int, ...]) -> int | None:
    """The shortest period, in tokens, that fills the last third of an output; None of text, or where it is too short.

    The least p with ``t[i] = t[i - p]`` for all i of the third but its first p, where p fits in it three times.
    """
    tail = tokens[-(len(tokens) // _SHARE) :] if len(tokens) >= _SHARE * _LEAST else ()
    return next((p for p in range(1, len(tail) // _TIMES + 1) if tail[p:] == tail[:-p]), None)

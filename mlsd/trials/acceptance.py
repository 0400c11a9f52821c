"""What an acceptance rate may mean, and what each meaning says of the tokens that a round commits.

Three are in use. ``proposed``: accepted over proposed tokens (the study, llama.cpp, vLLM, mlx-vlm). ``position``: the
chance that a drafted token is accepted where the one before it was (alpha of Leviathan et al. 2022, arXiv 2211.17192).
``output``: accepted over output tokens (mlx-lm's from_draft, dflash-mlx). MGL is tokens a round, the bonus included.
"""

import functools
from typing import Literal, get_args

Meaning = Literal["proposed", "position", "output"]
MEANINGS: tuple[Meaning, ...] = get_args(Meaning)
WORDS: dict[Meaning, str] = {
    "proposed": "accepted over proposed tokens",
    "position": "the chance of each drafted token after the one before it",
    "output": "accepted over output tokens",
}


def mgl_of(rate: float, meaning: Meaning, gamma: int | None) -> float | None:
    """Tokens a round at a rate, where drafts have gamma tokens; shorter drafts commit less. None without a gamma.

    proposed: ``1 + gamma a``. position: ``(1 - a^(gamma+1)) / (1 - a)`` (Leviathan et al., equation 1). output: a round
    adds one token that no drafter proposed, so ``1 / (1 - a)``, and at most ``gamma + 1``.
    """
    rate = min(1.0, max(0.0, rate))
    if meaning == "output":
        most = float("inf") if gamma is None else gamma + 1.0
        return min(most, 1.0 / (1.0 - rate)) if rate < 1.0 else None if gamma is None else most
    if gamma is None:
        return None
    if meaning == "proposed":
        return 1.0 + gamma * rate
    return gamma + 1.0 if rate >= 1.0 else (1.0 - rate ** (gamma + 1)) / (1.0 - rate)


@functools.cache  # of the few MGLs that counts give
def rate_of(mgl: float, meaning: Meaning, gamma: int | None) -> float | None:
    """The rate at which rounds commit so many tokens: `mgl_of` turned around. None where there is none."""
    if mgl < 1.0 or (gamma is not None and mgl > gamma + 1.0):
        return None
    if meaning == "output":
        return 1.0 - 1.0 / mgl
    if not gamma:
        return None
    if meaning == "proposed":
        return (mgl - 1.0) / gamma
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (mgl_of(middle, "position", gamma) or 0.0) < mgl else (low, middle)
    return (low + high) / 2


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

"""What an acceptance rate may mean, what each meaning says of the tokens that a round commits, and what rounds show.

Three are in use. ``proposed``: accepted over proposed tokens (the study, llama.cpp, vLLM, mlx-vlm). ``position``: the
chance that a drafted token is accepted where the one before it was (alpha of Leviathan et al. 2022, arXiv 2211.17192).
``output``: accepted over output tokens (mlx-lm's from_draft, dflash-mlx). MGL is tokens a round, the bonus included.
`by_position` counts the second where rounds are known; `rate_of` gives the one chance at which drafts of gamma tokens
would have an MGL, for figures of others that state nothing else.
"""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from mlsd.stats import Interval
from mlsd.trials.proportions import Counts, pooled
from mlsd.trials.rates import Endings, Sums, total

Meaning = Literal["proposed", "position", "output"]
MEANINGS: tuple[Meaning, ...] = get_args(Meaning)
DESCRIPTIONS: dict[Meaning, str] = {
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
    return chance_for(((gamma, 0, 1),), mgl)


class Position(NamedTuple):
    """What became of the tokens at one place of a draft."""

    position: int  # 1 is the first
    reached: int  # rounds that proposed so many tokens and accepted all before this one
    accepted: int  # of them
    rate: Interval  # accepted over reached


def by_position(texts: Sequence[tuple[Sums, int]]) -> tuple[Position, ...]:
    """Acceptance at each place of a draft, of the rounds on some texts, each with the number of trials behind its sums.

    Repeats of a greedy trial end alike, so a text counts as many rounds as one of its trials has; the interval is that
    over texts, and of one text speaks of it alone (`proportions.pooled`). Of a tree a place is a level.
    """
    whole = total(each for each, _ in texts)
    positions = []
    for position in range(1, 1 + max((k for k, _, _ in whole.endings), default=0)):
        reached, accepted = _at(whole.endings, position)
        counted = [(*_at(each.endings, position), n_trials) for each, n_trials in texts]
        counts = [Counts(share=a / r, n=r / n_trials) for r, a, n_trials in counted if r]
        if counts:
            positions.append(Position(position, reached, accepted, pooled(counts)))
    return tuple(positions)


def chance_for(endings: Endings, mgl: float) -> float | None:
    """The chance of each token after the one before it at which rounds with drafts as long would have this MGL.

    ``sum over rounds of (1 + a + ... + a^proposed) = rounds MGL``; a round without a draft gives one token in any case.
    None where even drafts that are always right give less.
    """
    n_rounds = sum(n for _, _, n in endings)
    lengths = [(k, n) for k, _, n in endings]

    def enough(chance: float) -> bool:
        return sum(n * sum(chance**i for i in range(k + 1)) for k, n in lengths) >= n_rounds * mgl

    if not n_rounds or not enough(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return (low + high) / 2


def _at(endings: Endings, position: int) -> tuple[int, int]:
    """How many rounds reached a place of their drafts, and how many accepted the token there."""
    reached = sum(n for k, a, n in endings if k >= position and a >= position - 1)
    return reached, sum(n for _, a, n in endings if a >= position)


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

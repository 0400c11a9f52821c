"""What an acceptance rate may mean, and what each meaning says of the tokens that a round commits.

Three are in use. ``proposed``: accepted over proposed tokens (the study, llama.cpp, vLLM, mlx-vlm). ``position``: the
chance that a drafted token is accepted where the one before it was (alpha of Leviathan et al. 2022, arXiv 2211.17192).
``output``: accepted over output tokens (mlx-lm's from_draft, dflash-mlx). MGL is tokens a round, the bonus included.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def rates(accepted: int, proposed: int, committed: int) -> dict[Meaning, float | None]:
    """The two rates that counts alone give; `position` needs the counts of each round (`by_position`)."""
    return {
        "proposed": accepted / proposed if proposed else None,
        "position": None,
        "output": accepted / committed if committed else None,
    }


def histogram(accepted_a_round: Sequence[int]) -> tuple[int, ...]:
    """How many rounds had 0, 1, 2 ... drafted tokens accepted."""
    counts = [0] * (max(accepted_a_round, default=-1) + 1)
    for n in accepted_a_round:
        counts[n] += 1
    return tuple(counts)


def by_position(proposed: Sequence[int], accepted: Sequence[int]) -> tuple[float | None, ...]:
    """The chance of each drafted token after the one before it, from what each round proposed and accepted."""
    result: list[float | None] = []
    for place in range(max(proposed, default=0)):
        reached = sum(p > place and a >= place for p, a in zip(proposed, accepted, strict=True))
        kept = sum(a > place for a in accepted)
        result.append(kept / reached if reached else None)
    return tuple(result)

"""How rounds end: so many proposed, so many accepted; as they were, or as acceptance at each position gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mlsd.errors import AnalysisError
from mlsd.records import Round

Outcomes = Mapping[tuple[int, int], float]  # (proposed, accepted) -> rounds, or their share


def outcomes_of(rounds: Iterable[Round]) -> dict[tuple[int, int], float]:
    """Rounds as they were, by (proposed, accepted)."""
    return {key: float(n) for key, n in Counter((r.proposed, r.accepted) for r in rounds).items()}


def outcomes_from_alphas(alphas: Sequence[float], gamma: int) -> dict[tuple[int, int], float]:
    """Shares of rounds with so many of `gamma` accepted, from conditional acceptances; the last one goes on.

    ``P(a) = alpha_1 ... alpha_a (1 - alpha_(a+1))``, and all the rest at a = gamma.
    """
    if not alphas:
        raise AnalysisError("No acceptance is known at any position.")
    survival, shares = 1.0, {}
    for a in range(gamma):
        alpha = alphas[min(a, len(alphas) - 1)]
        shares[gamma, a] = survival * (1 - alpha)
        survival *= alpha
    shares[gamma, gamma] = survival
    return shares


def alphas_of(rounds: Sequence[Round]) -> list[float]:
    """Conditional acceptance at each position i, up to the first that no round tried.

    ``#(accepted >= i) / #(accepted >= i - 1 and proposed >= i)``.
    """
    known: list[float] = []
    while tried := sum(r.accepted >= len(known) and r.proposed > len(known) for r in rounds):
        known.append(sum(r.accepted > len(known) for r in rounds) / tried)
    return known


def mgl_of(outcomes: Outcomes) -> float:
    """Committed tokens a round."""
    return sum(n * (a + 1) for (_, a), n in outcomes.items()) / sum(outcomes.values())

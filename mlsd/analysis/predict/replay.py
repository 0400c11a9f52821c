"""What another gamma would have done on the same output: greedy rounds replayed from rounds that were measured.

A greedy draft model proposes the same tokens after the same text, so one run of rounds says for most positions of the
output how far the draft goes right from there: a round that starts at position p and has a of n proposals accepted goes
right for a - j tokens from p + j, and then wrong; with all accepted it goes right for at least that long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mlsd.errors import AnalysisError
from mlsd.records import Round

Outcomes = Mapping[tuple[int, int], float]  # (proposed, accepted) -> rounds, or their share

_DRAWS = 16  # replays to average where a position is not known


class RunAhead(NamedTuple):
    """How many tokens a draft goes right from a position."""

    length: int
    open_end: bool  # it may go right for longer: all that was proposed was accepted


def runs_ahead(rounds: Iterable[Round], known: Mapping[int, RunAhead] | None = None) -> dict[int, RunAhead]:
    """Run lengths by position (output tokens committed before), joined with those `known` from other gammas."""
    found = dict(known or {})
    position = 1  # the first output token is the prefill's
    for r in rounds:
        open_end = r.accepted == r.proposed
        # Where all was accepted, nothing is known of the position behind: the bonus token was not proposed.
        for j in range(r.accepted if open_end else r.accepted + 1):
            new, old = RunAhead(r.accepted - j, open_end), found.get(position + j)
            if old is None or (old.open_end and (not new.open_end or new.length > old.length)):
                found[position + j] = new
        position += r.committed
    return found


def replay(known: Mapping[int, RunAhead], gamma: int, n_tokens: int, alpha: float) -> dict[tuple[int, int], float]:
    """Rounds of a generation of `n_tokens` at `gamma`: how many had so many proposed and accepted.

    `alpha` is the acceptance probability of a token where the position is not known. Raises AnalysisError when nothing
    is known at all.
    """
    if not known:
        raise AnalysisError("No round was measured, so there is nothing to replay.")
    rng = np.random.default_rng(0)
    total: Counter[tuple[int, int]] = Counter()
    for _ in range(_DRAWS):
        position = 1
        while position < n_tokens:
            k = min(gamma, n_tokens - position - 1)
            accepted = _accepted(known, position, k, alpha, rng)
            total[k, accepted] += 1
            position += accepted + 1
    return {outcome: count / _DRAWS for outcome, count in total.items()}


def _accepted(known: Mapping[int, RunAhead], start: int, k: int, alpha: float, rng: np.random.Generator) -> int:
    """Tokens right from `start`, at most `k`: known runs follow each other, unknown tokens are drawn."""
    at = start
    while at - start < k:
        run = known.get(at)
        if run is None:
            if rng.random() >= alpha:
                break
            at += 1
        else:
            at += run.length
            if not run.open_end:
                break
    return min(at - start, k)


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

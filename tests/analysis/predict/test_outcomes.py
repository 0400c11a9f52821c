"""How rounds end, on drafts whose right and wrong tokens are known."""

from __future__ import annotations

import numpy as np
import pytest

from mlsd.analysis.predict.outcomes import alphas_of, mgl_of, outcomes_from_alphas
from mlsd.errors import AnalysisError
from mlsd.records import Round


def round_of(proposed: int, accepted: int) -> Round:
    times = dict.fromkeys(("draft_ns", "verify_ns", "rollback_ns", "sample_ns", "other_ns"), 1)
    return Round(proposed=proposed, accepted=accepted, committed=accepted + 1, rows=proposed + 1, **times)


def rounds_of(right: list[bool], gamma: int) -> list[Round]:
    """The rounds of a greedy draft that is right or wrong about output token i as `right[i]` says."""
    rounds, position, n = [], 1, len(right)
    while position < n:
        k = min(gamma, n - position - 1)
        accepted = 0
        while accepted < k and right[position + accepted]:
            accepted += 1
        rounds.append(round_of(k, accepted))
        position += accepted + 1
    return rounds


def test_outcomes_from_alphas_commit_what_the_formula_says() -> None:
    for alphas in ([0.7], [0.9, 0.5, 0.2], [1.0], [0.0]):
        for gamma in (1, 3, 6):
            shares = outcomes_from_alphas(alphas, gamma)
            longer = [alphas[min(i, len(alphas) - 1)] for i in range(gamma)]
            assert sum(shares.values()) == pytest.approx(1)
            assert mgl_of(shares) == pytest.approx(1 + np.cumprod(longer).sum())


def test_alphas_count_only_rounds_that_reached_a_position() -> None:
    rounds = [round_of(proposed, accepted) for proposed, accepted in ((3, 2), (3, 0), (1, 1), (0, 0))]
    assert alphas_of(rounds) == [pytest.approx(2 / 3), 1.0, 0.0]


def test_no_acceptance_gives_no_outcomes() -> None:
    with pytest.raises(AnalysisError):
        outcomes_from_alphas([], 4)

"""Rounds replayed from other gammas, on drafts whose right and wrong tokens are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsd.analysis.predict.predict import mgl_of
from mlsd.analysis.predict.replay import RunAhead, alphas_of, outcomes_from_alphas, outcomes_of, replay, runs_ahead
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


texts = st.lists(st.booleans(), min_size=8, max_size=120)


@settings(max_examples=60)
@given(texts, st.integers(1, 17), st.integers(1, 17))
def test_a_known_run_is_a_true_run(right: list[bool], one: int, other: int) -> None:
    known = runs_ahead(rounds_of(right, other), runs_ahead(rounds_of(right, one)))
    for position, run in known.items():
        stretch = right[position : position + run.length]
        assert all(stretch)
        after = position + run.length
        if not run.open_end and after < len(right):
            assert not right[after]


@settings(max_examples=60)
@given(texts, st.integers(1, 17))
def test_a_replay_of_its_own_gamma_repeats_the_rounds(right: list[bool], gamma: int) -> None:
    measured = rounds_of(right, gamma)
    assert replay(runs_ahead(measured), gamma, len(right), 0.5) == pytest.approx(outcomes_of(measured))


@settings(max_examples=60)
@given(texts, st.integers(1, 8))
def test_a_shorter_gamma_is_replayed_where_the_longer_run_is_closed(right: list[bool], gamma: int) -> None:
    right = [r and i % 9 != 8 for i, r in enumerate(right)]  # no run reaches gamma 16, so every run has an end
    known = runs_ahead(rounds_of(right, 16))
    ours, truth = replay(known, gamma, len(right), 0.5), outcomes_of(rounds_of(right, gamma))
    ends = {position for position, run in known.items() if run.open_end}
    if not ends - {len(right) - 1, len(right) - 2}:
        assert mgl_of(ours) == pytest.approx(mgl_of(truth), rel=0.1)


def test_gammas_join_to_a_longer_one() -> None:
    right = [True] * 6 + [False] + [True] * 20 + [False] + [True] * 30
    known: dict[int, RunAhead] = {}
    for gamma in (1, 2, 4):
        known = runs_ahead(rounds_of(right, gamma), known)
    ours, truth = replay(known, 8, len(right), 0.9), outcomes_of(rounds_of(right, 8))
    assert mgl_of(ours) == pytest.approx(mgl_of(truth), rel=0.1)


def test_outcomes_from_alphas_commit_what_the_formula_says() -> None:
    for alphas in ([0.7], [0.9, 0.5, 0.2], [1.0], [0.0]):
        for gamma in (1, 3, 6):
            shares = outcomes_from_alphas(alphas, gamma)
            longer = [alphas[min(i, len(alphas) - 1)] for i in range(gamma)]
            assert sum(shares.values()) == pytest.approx(1)
            assert mgl_of(shares) == pytest.approx(1 + np.cumprod(longer).sum())


def test_alphas_end_where_no_round_reached() -> None:
    rounds = rounds_of([True, True, False, True, False, False, True, True], 3)
    alphas = alphas_of(rounds)
    assert 1 <= len(alphas) <= 3
    assert all(0 <= a <= 1 for a in alphas)


def test_alphas_count_only_rounds_that_reached_a_position() -> None:
    rounds = [round_of(proposed, accepted) for proposed, accepted in ((3, 2), (3, 0), (1, 1), (0, 0))]
    assert alphas_of(rounds) == [pytest.approx(2 / 3), 1.0, 0.0]


def test_nothing_known_cannot_be_replayed() -> None:
    with pytest.raises(AnalysisError):
        replay({}, 4, 50, 0.5)
    with pytest.raises(AnalysisError):
        outcomes_from_alphas([], 4)

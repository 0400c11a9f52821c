import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.analysis.fits import costmodel
from mlsd.errors import AnalysisError

probabilities = st.floats(0.0, 1.0)
gammas = st.integers(0, 32)
costs = st.floats(0.01, 50.0)


@given(alpha=st.floats(0.0, 0.999), gamma=gammas)
def test_expected_tokens_follow_leviathans_closed_form(alpha: float, gamma: int) -> None:
    closed_form = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert costmodel.expected_committed([alpha] * gamma) == pytest.approx(closed_form, rel=1e-9)


@given(alphas=st.lists(probabilities, max_size=20))
def test_a_round_commits_at_least_one_token_and_at_most_gamma_plus_one(alphas: list[float]) -> None:
    assert 1.0 <= costmodel.expected_committed(alphas) <= len(alphas) + 1


@given(alpha=st.floats(0.01, 0.99), gamma=st.integers(1, 24))
def test_iid_alpha_inverts_the_expected_tokens(alpha: float, gamma: int) -> None:
    committed = costmodel.expected_committed([alpha] * gamma)
    assert costmodel.iid_alpha(committed, gamma) == pytest.approx(alpha, abs=1e-6)


@given(alpha=probabilities, gamma=st.integers(1, 16), t_one=costs, t_draft=costs, extra=costs)
def test_a_speedup_from_honest_costs_never_exceeds_mgl(
    alpha: float, gamma: int, t_one: float, t_draft: float, extra: float
) -> None:
    committed = costmodel.expected_committed([alpha] * gamma)
    assert costmodel.speedup_measured(committed, t_one, t_draft, t_one + extra) <= committed


def test_the_classical_speedup_is_the_measured_one_with_free_verification() -> None:
    committed = costmodel.expected_committed([0.7] * 5)
    assert costmodel.speedup_classical(0.7, 5, 0.1) == pytest.approx(
        costmodel.speedup_measured(committed, 1.0, 0.5, 1.0)
    )


def test_the_overhead_form_gives_the_worked_example_of_the_small_model_study() -> None:
    break_even = (16.6 + 10.7) / 10.7  # MGL
    assert break_even == pytest.approx(2.55, abs=0.005)
    assert costmodel.speedup_overhead(break_even, 16.6 / 10.7) == pytest.approx(1.0)


def test_the_published_batch_form_promises_a_speedup_for_a_draft_that_is_never_right() -> None:
    promised = costmodel.speedup_batch_published(16, t_seq=20.0, t_draft=100.0, t_verify=60.0)
    possible = costmodel.speedup_measured(1.0, 20.0, 100.0, 60.0)
    assert promised == pytest.approx(2.0)
    assert possible == pytest.approx(0.125)


@given(gamma=st.integers(1, 16), t_one=costs, t_draft=costs, extra=costs)
def test_break_even_acceptance_gives_a_speedup_of_one_or_none_can(
    gamma: int, t_one: float, t_draft: float, extra: float
) -> None:
    alpha = costmodel.break_even_alpha(gamma, (t_draft + t_one + extra) / t_one)
    if alpha is None:  # up to the last bit, which decides where full acceptance gives just 1
        assert costmodel.speedup_measured(gamma + 1, t_one, t_draft, t_one + extra) < 1 + 1e-12
    else:
        committed = costmodel.expected_committed([alpha] * gamma)
        assert costmodel.speedup_measured(committed, t_one, t_draft, t_one + extra) == pytest.approx(1.0, rel=1e-6)


def test_conditional_acceptance_counts_only_rounds_that_reached_a_position() -> None:
    assert costmodel.conditional_acceptance([3, 3, 1, 0], [2, 0, 1, 0]) == [pytest.approx(2 / 3), 1.0, 0.0]


def test_conditional_acceptance_multiplies_back_to_the_mean_accepted_per_round() -> None:
    proposed, accepted = [4] * 6, [0, 1, 4, 2, 4, 0]
    alphas = [alpha for alpha in costmodel.conditional_acceptance(proposed, accepted) if alpha is not None]
    assert costmodel.expected_committed(alphas) == pytest.approx(1 + sum(accepted) / len(accepted))


@pytest.mark.parametrize(
    "call",
    [
        lambda: costmodel.expected_committed([1.2]),
        lambda: costmodel.expected_committed([math.nan]),
        lambda: costmodel.iid_alpha(6.5, 4),
        lambda: costmodel.iid_alpha(0.5, 4),
        lambda: costmodel.conditional_acceptance([2], [3]),
        lambda: costmodel.conditional_acceptance([2, 2], [1]),
    ],
)
def test_numbers_that_cannot_be_are_refused(call) -> None:
    with pytest.raises(AnalysisError):
        call()

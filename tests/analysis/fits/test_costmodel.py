import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.analysis.fits import costmodel
from mlsd.errors import AnalysisError
from mlsd.trials.acceptance import mgl_of

probabilities = st.floats(0.0, 1.0)
costs = st.floats(0.01, 50.0)


def committed_at(alpha: float, gamma: int) -> float:
    return mgl_of(alpha, "position", gamma) or 0.0


@given(alpha=probabilities, gamma=st.integers(1, 16), t_one=costs, t_draft=costs, extra=costs)
def test_a_speedup_from_honest_costs_never_exceeds_mgl(
    alpha: float, gamma: int, t_one: float, t_draft: float, extra: float
) -> None:
    committed = committed_at(alpha, gamma)
    assert costmodel.speedup_measured(committed, t_one, t_draft, t_one + extra) <= committed


def test_the_classical_speedup_is_the_measured_one_with_free_verification() -> None:
    committed = committed_at(0.7, 5)
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
        committed = committed_at(alpha, gamma)
        assert costmodel.speedup_measured(committed, t_one, t_draft, t_one + extra) == pytest.approx(1.0, rel=1e-6)


def test_conditional_acceptance_counts_only_rounds_that_reached_a_position() -> None:
    assert costmodel.conditional_acceptance([3, 3, 1, 0], [2, 0, 1, 0]) == [pytest.approx(2 / 3), 1.0, 0.0]


def test_conditional_acceptance_multiplies_back_to_the_mean_accepted_per_round() -> None:
    proposed, accepted = [4] * 6, [0, 1, 4, 2, 4, 0]
    survival = np.cumprod(
        [alpha for alpha in costmodel.conditional_acceptance(proposed, accepted) if alpha is not None]
    )
    assert survival.sum() == pytest.approx(sum(accepted) / len(accepted))


@pytest.mark.parametrize(("proposed", "accepted"), [([2], [3]), ([2, 2], [1])])
def test_numbers_that_cannot_be_are_refused(proposed: list[int], accepted: list[int]) -> None:
    with pytest.raises(AnalysisError):
        costmodel.conditional_acceptance(proposed, accepted)

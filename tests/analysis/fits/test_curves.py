import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.analysis.fits import curves
from mlsd.errors import AnalysisError

ROWS = np.arange(1, 34)


def test_uniform_coverage_gives_moesds_figures_for_256_experts_with_8_used() -> None:
    expected = [8.0, 15.8, 30.5, 37.6, 57.4, 63.6, 102.0, 106.8]
    assert curves.distinct_experts([1, 2, 4, 5, 8, 9, 16, 17], 256, 8) == pytest.approx(expected, abs=0.06)


@given(n_experts=st.integers(2, 512), fraction=st.floats(0.01, 1.0), r=st.floats(0.0, 1.0), k=st.integers(1, 200))
def test_coverage_lies_between_one_tokens_experts_and_all(n_experts: int, fraction: float, r: float, k: int) -> None:
    n_used = max(1, int(fraction * n_experts))
    touched = float(curves.distinct_experts(k, n_experts, n_used, r)[0])
    assert n_used - 1e-9 <= touched <= min(n_experts, n_used * k) + 1e-9


@given(k=st.integers(1, 64))
def test_fully_correlated_tokens_share_their_experts(k: int) -> None:
    assert curves.distinct_experts(k, 128, 4, correlation=1.0) == pytest.approx([4.0])


def test_kernel_steps_are_found_where_they_are() -> None:
    rng = np.random.default_rng(7)
    rows = np.repeat(ROWS, 5)
    times = 10.0 + 0.2 * rows + curves.step_columns(rows, [2, 9, 32]) @ [8.0, 3.0, 6.0]
    found = curves.find_steps(rows, times * np.exp(rng.normal(0, 0.01, len(rows))))
    assert found.edges == (2, 9, 32)
    assert found.jumps_ms == pytest.approx((8.0, 3.0, 6.0), abs=0.4)
    assert (found.fixed_ms, found.per_row_ms) == (pytest.approx(10.0, abs=0.3), pytest.approx(0.2, abs=0.03))


def test_a_fall_is_no_kernel_step() -> None:
    times = 10.0 + 0.2 * ROWS - 3.0 * (ROWS >= 20)
    assert all(jump > 0 for jump in curves.find_steps(ROWS, times).jumps_ms)


def test_no_step_is_found_in_a_noisy_line() -> None:
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = np.repeat(ROWS, 3)
        times = (10.0 + 0.5 * rows) * np.exp(rng.normal(0, 0.03, len(rows)))
        found += bool(curves.find_steps(rows, times).edges)
    assert found <= 3


def test_steps_need_enough_rows() -> None:
    with pytest.raises(AnalysisError, match="four or more"):
        curves.find_steps([1, 2, 3, 3], [1.0, 2.0, 3.0, 3.0])

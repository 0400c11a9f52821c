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


def test_one_correlation_describes_a_published_measurement_of_coverage_that_uniform_routing_misses() -> None:
    # Distinct experts measured for 1, 4, 8 and 16 neighbouring tokens of Qwen3.6-35B-A3B, a model of the same shape.
    rows, measured = [1, 4, 8, 16], np.array([8, 22, 36, 56])
    uniform = curves.distinct_experts(rows, 256, 8)
    correlated = curves.distinct_experts(rows, 256, 8, correlation=0.254)
    assert np.max(np.abs(correlated / measured - 1)) < 0.02
    assert uniform[-1] / measured[-1] > 1.8


@given(n_experts=st.integers(2, 512), fraction=st.floats(0.01, 1.0), r=st.floats(0.0, 1.0), k=st.integers(1, 200))
def test_coverage_lies_between_one_tokens_experts_and_all(n_experts: int, fraction: float, r: float, k: int) -> None:
    n_used = max(1, int(fraction * n_experts))
    touched = float(curves.distinct_experts(k, n_experts, n_used, r)[0])
    assert n_used - 1e-9 <= touched <= min(n_experts, n_used * k) + 1e-9


@given(k=st.integers(1, 64))
def test_fully_correlated_tokens_share_their_experts(k: int) -> None:
    assert curves.distinct_experts(k, 128, 4, correlation=1.0) == pytest.approx([4.0])


def test_the_roofline_is_flat_up_to_the_ridge_and_rises_after_it() -> None:
    times = curves.roofline(ROWS, fixed=2.0, bandwidth_gb_s=100.0, rate_gflop_s=1000.0, n_bytes=1e9, gflop_per_row=1.0)
    assert times[:10] == pytest.approx([12.0] * 10)
    assert times[10:] == pytest.approx(2.0 + np.arange(11, 34))


def test_a_stepped_curve_jumps_at_its_edges_only() -> None:
    times = curves.stepped(ROWS, fixed=5.0, per_row=0.5, jumps=[3.0, -1.0], edges=[2, 9])
    rise = np.diff(times)
    assert rise[0] == pytest.approx(3.5)
    assert rise[7] == pytest.approx(-0.5)
    assert np.delete(rise, [0, 7]) == pytest.approx(np.full(30, 0.5))


def test_bytes_of_a_pass_count_each_touched_expert_once_a_layer() -> None:
    assert curves.moe_bytes([8.0, 16.0], always_bytes=100.0, n_layers=3, expert_bytes=2.0) == pytest.approx([148, 196])


def test_a_moe_pass_takes_the_time_its_bytes_need_at_the_bandwidth() -> None:
    times = curves.moe_pass([1, 2], pass_bytes=[1e9, 2e9], fixed=1.0, bandwidth_gb_s=100.0, per_row=0.25)
    assert times == pytest.approx([11.25, 21.5])


def test_kernel_steps_are_found_where_they_are() -> None:
    rng = np.random.default_rng(7)
    rows = np.repeat(ROWS, 5)
    times = curves.stepped(rows, fixed=10.0, per_row=0.2, jumps=[8.0, 3.0, 6.0], edges=[2, 9, 32])
    found = curves.find_steps(rows, times * np.exp(rng.normal(0, 0.01, len(rows))))
    assert found.edges == (2, 9, 32)
    assert found.jumps_ms == pytest.approx((8.0, 3.0, 6.0), abs=0.4)
    assert (found.fixed_ms, found.per_row_ms) == (pytest.approx(10.0, abs=0.3), pytest.approx(0.2, abs=0.03))


def test_no_step_is_found_in_a_noisy_line() -> None:
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = np.repeat(ROWS, 3)
        times = curves.linear(rows, 10.0, 0.5) * np.exp(rng.normal(0, 0.03, len(rows)))
        found += bool(curves.find_steps(rows, times).edges)
    assert found <= 3


def test_steps_need_enough_rows_and_matching_jumps() -> None:
    with pytest.raises(AnalysisError, match="four or more"):
        curves.find_steps([1, 2, 3, 3], [1.0, 2.0, 3.0, 3.0])
    with pytest.raises(AnalysisError, match="kernel steps"):
        curves.stepped(ROWS, 1.0, 1.0, jumps=[1.0], edges=[2, 9])


def test_a_constant_curve_and_a_line_are_what_they_say() -> None:
    assert curves.constant([1, 5], 3.0) == pytest.approx([3.0, 3.0])
    assert curves.linear([1, 5], 3.0, 2.0) == pytest.approx([5.0, 13.0])

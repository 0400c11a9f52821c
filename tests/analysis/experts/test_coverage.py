"""Theory of expert coverage against coverage that was drawn from a known router."""

from collections.abc import Iterable

import numpy as np
import pytest

from mlsd.analysis.experts.coverage import coverage_table, fit_correlation
from mlsd.analysis.fits.curves import distinct_experts
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, ModelRef
from mlsd.store.rows import Coverage, ExpertLoad

E, K = 64, 8
WINDOWS = (1, 2, 4, 8, 16)
MIXTURE = ModelFacts(
    ref=ModelRef(id="mix"),
    architecture="qwen35moe",
    n_experts=E,
    n_experts_used=K,
    weight_bytes=1_000_000 + E * 100_000,
    active_bytes=1_000_000 + K * 100_000,
)
DENSE = ModelFacts(ref=ModelRef(id="dense"), architecture="llama", active_bytes=5_000)


def routed(share_kept: float, seed: int = 1, windows: Iterable[int] = WINDOWS) -> list[Coverage]:
    """Coverage of two layers whose tokens keep that share of the experts of the token before."""
    rng = np.random.default_rng(seed)
    rows = []
    for layer in range(2):
        chosen = [rng.permutation(E)[:K]]
        for _ in range(2000):
            kept = rng.permutation(chosen[-1])[: round(share_kept * K)]
            fresh = rng.permutation(np.setdiff1d(np.arange(E), kept))[: K - len(kept)]
            chosen.append(np.concatenate([kept, fresh]))
        ids = np.array(chosen)
        for window in windows:
            sizes = [len(np.unique(ids[i : i + window])) for i in range(len(ids) - window)]
            values, counts = np.unique(sizes, return_counts=True)
            histogram = {int(v): int(c) for v, c in zip(values, counts, strict=True)}
            rows.append(Coverage(model_key="m", source="text", layer=layer, window=window, distinct=histogram))
    return rows


def test_independent_routing_is_what_the_uniform_theory_says() -> None:
    table = coverage_table(routed(0.0), MIXTURE)
    assert table.uniform_error < 0.02
    assert table.correlation < 0.03
    assert table.overlap == pytest.approx(K * K / E, abs=0.1)


def test_tokens_that_share_experts_are_overestimated_by_it() -> None:
    table = coverage_table(routed(0.5), MIXTURE)
    assert table.uniform_error > 0.3
    assert table.correlated_error < table.uniform_error
    assert table.correlation > 0.1
    by_window = {row.window: row for row in table.rows}
    assert by_window[1].text == K == by_window[1].uniform
    assert by_window[8].text < by_window[8].uniform


def test_the_correlation_is_recovered_from_its_own_curve() -> None:
    windows = np.array([1, 2, 4, 8, 16, 32])
    for r in (0.0, 0.1, 0.35, 0.7):
        measured = distinct_experts(windows, 256, 8, r)
        assert fit_correlation(windows, measured, 256, 8) == pytest.approx(r, abs=1e-4)


def test_public_counts_of_a_large_mixture_need_a_correlation() -> None:
    """Others measured 22, 36 and 56 distinct experts in 4, 8 and 16 tokens, with 256 experts and 8 a token."""
    windows, measured = np.array([1, 4, 8, 16]), np.array([8.0, 22.0, 36.0, 56.0])
    r = fit_correlation(windows, measured, 256, 8)
    assert 0.15 < r < 0.35
    assert np.max(np.abs(distinct_experts(windows, 256, 8, r) / measured - 1)) < 0.08


def test_bytes_follow_the_experts() -> None:
    row = {r.window: r for r in coverage_table(routed(0.0), MIXTURE).rows}[8]
    expected = 1_000_000 + row.text * 100_000
    assert row.bytes_ratio == pytest.approx(expected / MIXTURE.active_bytes)  # type: ignore[operator]
    assert row.amortization == pytest.approx(row.bytes_ratio / 8)  # type: ignore[operator]
    assert row.against_all == pytest.approx(expected / MIXTURE.weight_bytes)  # type: ignore[operator]


def test_loads_show_a_favourite_expert() -> None:
    loads = [ExpertLoad(model_key="m", source="text", layer=0, chosen=(9, 1, 1, 1))]
    assert coverage_table(routed(0.0), MIXTURE, loads).imbalance == pytest.approx(3.0)


def test_a_dense_model_and_missing_coverage_are_errors() -> None:
    with pytest.raises(AnalysisError, match="calibrate"):
        coverage_table([], MIXTURE)
    with pytest.raises(AnalysisError, match="dense"):
        coverage_table(routed(0.0), DENSE)

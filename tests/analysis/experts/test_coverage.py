"""Expert coverage that was drawn from a known router, what verification saves, and the sentences that say so."""

from collections.abc import Iterable
from functools import cache

import msgspec
import numpy as np
import pytest

from mlsd.analysis.experts.coverage import (
    CoverageTable,
    Mixture,
    coverage_table,
    fit_correlation,
    mixture,
    time_shares,
)
from mlsd.analysis.fits.curves import distinct_experts
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, ModelRef
from mlsd.report.tables.machine import share_sentences as sentences
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad
from tests.analysis.fits.test_calibration import points

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


def test_loads_show_a_favourite_expert() -> None:
    loads = [ExpertLoad(model_key="m", source="text", layer=0, chosen=(9, 1, 1, 1))]
    assert coverage_table(routed(0.0), MIXTURE, loads).imbalance == pytest.approx(3.0)


def test_a_dense_model_and_missing_coverage_are_errors() -> None:
    with pytest.raises(AnalysisError, match="calibrate"):
        coverage_table([], MIXTURE)
    with pytest.raises(AnalysisError, match="dense"):
        coverage_table(routed(0.0), DENSE)


KS = range(1, 13)


@cache
def counted(share_kept: float) -> CoverageTable:
    """Coverage of tokens that keep that share of the experts of the token before."""
    return coverage_table(routed(share_kept, windows=KS), MIXTURE)


def found(share_kept: float, times: dict[int, float] | None = None, noise: float = 0.001) -> Mixture:
    """A mixture of that coverage, with passes of those times in ms."""
    return mixture("mix", counted(share_kept), MIXTURE, points(times, noise=noise) if times else ())


def bytes_of(distinct: float) -> float:
    return 1_000_000 + distinct * 100_000


# --- with times ------------------------------------------------------------------------------------------------


def test_a_token_costs_the_bytes_of_the_experts_counted_and_by_theory() -> None:
    row = next(row for row in found(0.5).coverage.rows if row.window == 8)
    uniform = E * (1 - (1 - K / E) ** 8)
    assert row.amortization == pytest.approx(bytes_of(row.text) / (8 * bytes_of(K)))
    assert row.against_all == pytest.approx(bytes_of(row.text) / (MIXTURE.weight_bytes or 0))
    assert row.uniform_amortization == pytest.approx(bytes_of(uniform) / (8 * bytes_of(K)))
    assert row.claimed == 1 / 8 < (row.amortization or 0) < (row.uniform_amortization or 0) < 1


def test_times_are_paired_within_a_repeat_so_that_a_slow_minute_cancels() -> None:
    made = []
    for repeat, slow in enumerate((1.0, 3.0, 1.0, 5.0)):
        for k, ms in ((1, 10.0), (4, 20.0)):
            span = round(1e6 * ms * slow)
            made.append(
                CalibrationPoint(model_key="m", kind="target_pass", rows=k, depth=8, repeat=repeat, span_ns=span)
            )
    shares = time_shares(made)
    assert shares[4].value == shares[4].low == shares[4].high == pytest.approx(0.5)
    cut = [p for p in made if not (p.repeat == 3 and p.rows == 1)]  # a repeat that ended before its plain pass
    assert time_shares(cut)[4].n == 3


@pytest.mark.slow
def test_the_correlation_has_an_interval_over_layers() -> None:
    rows = [msgspec.structs.replace(row, layer=row.layer + 2 * i) for i in range(3) for row in routed(0.5, seed=i)]
    table = coverage_table(rows, MIXTURE)
    r = table.correlation_interval
    assert r.n == 6
    assert r.low is not None and r.high is not None
    assert r.low <= table.correlation == r.value <= r.high
    two = coverage_table(routed(0.5), MIXTURE).correlation_interval
    assert two.low is None and two.n == 2


# --- sentences --------------------------------------------------------------------------------------------------


def test_tokens_that_share_all_experts_amortize_as_on_a_dense_model() -> None:
    in_bytes, time, routing = sentences(found(1.0, {k: 10.0 + 0.01 * k for k in KS}))
    assert "verification amortizes as on a dense model" in in_bytes
    assert "reads 80 % less than 5 plain passes, where the study says 80 %" in in_bytes
    assert "a plain pass reads 24 % of them" in in_bytes
    assert "T(5) is 1.00 T(1)" in time
    assert "r = 1.00" in routing


def test_independent_routing_is_what_moesd_says() -> None:
    in_bytes, _, routing = sentences(found(0.0))
    assert "verification amortizes in part" in in_bytes and float(routing.split("at most ")[1].split(" %")[0]) <= 2
    assert "a random router's choice" in sentences(msgspec.structs.replace(found(0.0), synthetic=True))[2]


def test_a_pass_that_was_not_timed_says_how_to_time_it_and_one_that_was_is_spoken_of() -> None:
    assert "were not timed: mlsd calibrate mix" in sentences(found(0.9))[1]
    in_bytes, time, _ = sentences(found(0.5, {1: 10.0, 2: 15.0, 4: 20.0, 8: 30.0}))
    assert "A pass over 4 tokens (gamma 3)" in in_bytes and "T(4) is 2.00 T(1)" in time


def test_what_decides_is_memory_arithmetic_or_a_fixed_time() -> None:
    experts = {row.window: row.text for row in counted(0.7).rows}
    cases = {
        "Time follows bytes": {k: bytes_of(n) / 1e6 for k, n in experts.items()},
        "arithmetic, not memory": {k: 1.0 * k for k in KS},
        "a fixed time of each pass": {k: 50.0 + bytes_of(n) / 1e6 for k, n in experts.items()},
    }
    for words, times in cases.items():
        assert words in sentences(found(0.7, times, noise=0.003))[1]


def test_unknown_bytes_leave_experts_and_nothing_made_up() -> None:
    facts = msgspec.structs.replace(MIXTURE, active_bytes=None, weight_bytes=None)
    model = mixture("mix", coverage_table(routed(0.5, windows=KS), facts), facts)
    assert "how many bytes they have is not known" in sentences(model)[0]
    alone = msgspec.structs.replace(model.coverage, rows=model.coverage.rows[:1])
    assert "cannot amortize" in sentences(msgspec.structs.replace(model, coverage=alone))[0]

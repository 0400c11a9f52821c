"""What verification saves on a mixture, and the sentences that say so, from coverage and times of known content."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import pytest

from mlsd.analysis.experts.amortization import Mixture, mixture, sentences, time_shares
from mlsd.analysis.experts.coverage import CoverageTable, coverage_table
from mlsd.store.rows import CalibrationPoint
from tests.analysis.experts.test_coverage import MIXTURE, E, K, routed
from tests.analysis.fits.test_calibration import points

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


# --- numbers ----------------------------------------------------------------------------------------------------


def test_a_token_costs_the_bytes_of_the_experts_counted_and_by_theory() -> None:
    row = next(row for row in found(0.5).coverage.rows if row.window == 8)
    uniform = E * (1 - (1 - K / E) ** 8)
    assert row.amortization == pytest.approx(bytes_of(row.text) / (8 * bytes_of(K)))
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


def test_the_correlation_has_an_interval_over_layers() -> None:
    rows = [msgspec.structs.replace(row, layer=row.layer + 2 * i) for i in range(3) for row in routed(0.5, seed=i)]
    table = coverage_table(rows, MIXTURE)
    r = table.correlation_interval
    assert r.n == 6
    assert r.low is not None and r.high is not None
    assert r.low <= table.correlation == r.value <= r.high
    two = coverage_table(routed(0.5), MIXTURE).correlation_interval
    assert two.low is None and two.n == 2


def test_full_activation_is_where_moesd_puts_it() -> None:
    model = found(0.0)
    assert model.saturation == int(np.ceil(np.log(0.05) / np.log(1 - K / E)))


# --- sentences --------------------------------------------------------------------------------------------------


def test_tokens_that_share_all_experts_amortize_as_on_a_dense_model() -> None:
    lines = sentences(found(1.0, {k: 10.0 + 0.01 * k for k in KS}))
    assert "verification amortizes as on a dense model" in lines[0]
    assert "reads 80 % less than 5 plain passes" in lines[0] and "would save 80 %" in lines[0]
    assert "Measured time amortizes at every k timed, most at k = 12" in lines[1]
    assert "T(5) is 1.00 T(1)" in lines[1]
    assert "a plain pass reads 24 % of the weights" in lines[2]
    assert "r = 1.00" in lines[3] and "were counted" in lines[3]


def test_a_model_whose_experts_are_all_in_use_confirms_the_claim() -> None:
    facts = msgspec.structs.replace(MIXTURE, active_bytes=MIXTURE.weight_bytes - 1_000)
    table = coverage_table(routed(1.0, windows=KS), facts)
    lines = sentences(mixture("mix", table, facts))
    assert "That is nearly so here: a plain pass reads 100 % of the weights." in lines[2]


def test_independent_routing_is_what_moesd_says() -> None:
    lines = sentences(found(0.0, {k: 10.0 * k for k in KS}, noise=0.05))
    assert "verification amortizes in part" in lines[0]
    assert "Independent uniform routing (MoESD) is right here within" in lines[3]
    assert "correlation" not in lines[3]
    random = msgspec.structs.replace(found(0.0), synthetic=True)
    assert "a random router's choice" in sentences(random)[3]
    assert "cut in depth" in sentences(random)[3]


def test_strong_correlation_is_reported_with_its_size() -> None:
    model = found(0.9)
    lines = sentences(model)
    near = next(row for row in model.coverage.rows if row.window == 5)
    assert f"reads {100 * (1 - (near.amortization or 0)):.0f} % less than 5 plain passes" in lines[0]
    assert "too many" in lines[3] and f"r = {model.coverage.correlation:.2f}" in lines[3]
    assert "were not timed: mlsd calibrate mix" in lines[1]


@pytest.mark.parametrize(
    ("times", "noise", "words"),
    [
        ({1: 10.0, 2: 15.0, 4: 20.0, 5: 22.0}, 0.001, "at every k timed, most at k = 5: 0.44"),
        ({1: 10.0, 2: 25.0, 4: 50.0, 5: 60.0}, 0.001, "A pass costs more than as many plain ones at k = 2 to 5."),
        ({1: 10.0, 2: 25.0, 4: 30.0, 5: 30.0}, 0.001, "a pass costs more than as many plain ones at k = 2."),
        ({1: 10.0, 2: 20.0, 4: 40.0, 5: 50.0}, 0.3, "No time is decided"),
    ],
)
def test_times_are_reported_as_far_as_they_are_decided(times: dict[int, float], noise: float, words: str) -> None:
    assert words in sentences(found(0.5, times, noise))[1]


def test_sentences_speak_of_a_pass_that_was_timed() -> None:
    lines = sentences(found(0.5, {1: 10.0, 2: 15.0, 4: 20.0, 8: 30.0}))
    assert "A pass over 4 tokens (gamma 3)" in lines[0] and "T(4) is 2.00 T(1)" in lines[1]


def test_what_decides_is_memory_arithmetic_or_a_fixed_time() -> None:
    experts = {row.window: row.text for row in counted(0.7).rows}
    cases = {
        "time follows bytes": {k: bytes_of(n) / 1e6 for k, n in experts.items()},
        "arithmetic, not memory": {k: 1.0 * k for k in KS},
        "a fixed time of each pass": {k: 50.0 + bytes_of(n) / 1e6 for k, n in experts.items()},
    }
    for words, times in cases.items():
        assert words in sentences(found(0.7, times, noise=0.003))[-1]


def test_unknown_bytes_leave_experts_and_nothing_made_up() -> None:
    facts = msgspec.structs.replace(MIXTURE, active_bytes=None, weight_bytes=None)
    model = mixture("mix", coverage_table(routed(0.5, windows=KS), facts), facts)
    lines = sentences(model)
    assert "how many bytes they have is not known" in lines[0]
    assert not any("The study words" in text for text in lines)
    alone = msgspec.structs.replace(model.coverage, rows=model.coverage.rows[:1])
    single = msgspec.structs.replace(model, coverage=alone)
    assert "cannot amortize" in sentences(single)[0]

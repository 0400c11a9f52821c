"""Bandwidth and fixed time from passes of known bytes, and why two ways may differ."""

import numpy as np
import pytest

from mlsd.analysis.fits.bandwidth import bytes_lines, compare
from mlsd.analysis.study.machine_findings import bandwidth_findings
from mlsd.errors import AnalysisError
from mlsd.store.rows import StreamRead, TimedPass


def passes(quant: str, gb_s: float, fixed_ms: float, noise: float = 0.01) -> list[TimedPass]:
    rng = np.random.default_rng(2)
    return [
        TimedPass(
            quant=quant,
            n_bytes=n_bytes,
            block=block,
            ms=(fixed_ms + n_bytes / gb_s / 1e6) * float(np.exp(noise * rng.standard_normal())),
        )
        for block in range(6)
        for n_bytes in (100_000_000, 200_000_000, 400_000_000)
    ]


def test_bandwidth_and_fixed_time_come_apart() -> None:
    (line,) = bytes_lines(passes("Q8_0", gb_s=20.0, fixed_ms=2.0))
    assert line.bandwidth_gb_s.value == pytest.approx(20.0, rel=0.05)
    assert line.fixed_ms.value == pytest.approx(2.0, abs=0.5)
    low, high = line.bandwidth_gb_s.low, line.bandwidth_gb_s.high
    assert low is not None and high is not None and low < 20.0 < high
    assert line.n_passes == 18


def test_the_fastest_quantization_comes_first() -> None:
    lines = bytes_lines([*passes("Q4_0", 9.0, 1.0), *passes("F16", 18.0, 1.0)])
    assert [line.quant for line in lines] == ["F16", "Q4_0"]


def test_agreement_within_a_fifth_is_reported_with_both_figures() -> None:
    verdict = compare(bytes_lines(passes("F16", 18.0, 1.0)), [20.0, 20.1, 19.9])
    assert verdict.agrees
    assert verdict.ratio == pytest.approx(0.9, rel=0.03)
    assert f"{verdict.ratio * 20:.1f}" in verdict.reason and "20.0" in verdict.reason


@pytest.mark.parametrize(
    ("rates", "stream", "words"),
    [
        ({"Q8_0": 12.0, "Q4_0": 6.0}, 20.0, "bound by arithmetic"),
        ({"Q8_0": 10.0, "F16": 10.1}, 20.0, "what they share"),
        ({"F16": 60.0}, 20.0, "cache"),
        ({"Q8_0": 10.0}, 20.0, "one quantization does not tell"),
    ],
)
def test_a_difference_is_explained_by_what_the_figures_show(rates: dict[str, float], stream: float, words: str) -> None:
    lines = bytes_lines([p for quant, gb_s in rates.items() for p in passes(quant, gb_s, 1.0)])
    verdict = compare(lines, [stream])
    assert not verdict.agrees
    assert words in verdict.reason


def test_one_size_is_not_enough() -> None:
    one = [p for p in passes("Q8_0", 20.0, 1.0) if p.n_bytes == 100_000_000]
    with pytest.raises(AnalysisError, match="one size"):
        bytes_lines(one)


def test_what_memory_gave_is_the_most_that_any_number_of_threads_read() -> None:
    """Passes on one thread, and a read on two that was faster: no pass may reach 136 % of what memory gave."""
    reads = [StreamRead(n_threads=n, repeat=i, gb_s=gb_s) for i in range(3) for n, gb_s in ((1, 33.0), (2, 44.8))]
    found = bandwidth_findings(reads, passes("F16", 30.0, 1.0), 1, "2026-11-27")
    assert found.best_gb_s == 44.8

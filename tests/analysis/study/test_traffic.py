"""Bytes, times and roofs of passes: known answers."""

from pathlib import Path

import msgspec
import pytest

import mlsd
from mlsd.analysis.experts.coverage import coverage_table
from mlsd.analysis.fits.calibration import target_curve
from mlsd.analysis.study.traffic import M2_ULTRA, Roof, compute_roof, timed_passes
from mlsd.records import ModelFacts, ModelRef
from mlsd.report.tables.equations import printed_reads, traffic_sentences, traffic_table
from tests.analysis.experts.test_coverage import MIXTURE, routed
from tests.analysis.fits.test_calibration import points
from tests.analysis.studies import whole_study

DENSE = ModelFacts(
    ref=ModelRef(id="m"), architecture="qwen2", weight_bytes=2 * 10**8, active_bytes=10**8, n_parameters_active=10**8
)
CURVE = target_curve(points({1: 10.0, 2: 10.0, 4: 20.0, 8: 40.0}))


def test_a_dense_pass_reads_the_same_whatever_k_is() -> None:
    one, two, _, eight = timed_passes("m", DENSE, CURVE)
    assert (one.read_bytes, eight.read_bytes) == (1e8, 1e8)
    assert (one.gb_s, one.claimed_gb_s) == (pytest.approx(10.0, rel=0.02), pytest.approx(20.0, rel=0.02))
    assert (two.time_a_token, two.bytes_a_token) == (pytest.approx(0.5, rel=0.02), 0.5)
    assert (eight.time_a_token, eight.bytes_a_token) == (pytest.approx(0.5, rel=0.02), 0.125), (
        "time says half, bytes 1/8"
    )
    assert one.intensity == pytest.approx(2.0) and eight.intensity == pytest.approx(16.0)
    assert compute_roof([one, two, eight]) == pytest.approx(40.0, rel=0.02), "2 x 8 x 10^8 operations in 40 ms"
    assert compute_roof([one, two]) is None, "a narrow pass waits for memory"


def test_a_mixture_reads_the_experts_that_were_counted() -> None:
    facts = msgspec.structs.replace(MIXTURE, n_parameters_active=10**6)
    table = coverage_table(routed(0.5), facts)
    counted = {row.window: row for row in table.rows}
    passes = timed_passes("mix", facts, CURVE, counted)
    assert {one.k for one in passes} <= {1, *counted}, "where none were counted the bytes are not known"
    first, last = passes[0], passes[-1]
    assert first.read_bytes == MIXTURE.active_bytes < last.read_bytes
    assert last.bytes_a_token == pytest.approx(counted[last.k].amortization)


def test_the_printed_tokens_read_a_ninth_of_what_the_study_says() -> None:
    found = {one.model: one for one in printed_reads()}
    q4 = found["moe_q4"]
    assert q4.gb_s == pytest.approx(91.7, abs=0.1) and q4.claimed_gb_s == pytest.approx(1139, abs=1)
    assert M2_ULTRA.ridge == pytest.approx(23.6, abs=0.1)
    assert found["dense_9b"].gb_s == pytest.approx(530, abs=1), "a dense one stays under the peak"


def test_one_machines_trials_alone_fill_the_bandwidth_analysis(tmp_path: Path) -> None:
    study = mlsd.open_study(whole_study(tmp_path / "s.sqlite"))
    plain = study.bandwidth[study.bandwidth["source"] == "plain decoding"]
    assert set(plain["model"]) == {"tiny-moe-q4_0", "tiny-dense"} and (plain["gb_s"] > 0).all()
    moe = plain[plain["model"] == "tiny-moe-q4_0"].iloc[0]
    assert moe["claimed_gb_s"] == pytest.approx(moe["gb_s"] * moe["weights_gb"] / moe["read_gb"])
    assert any(row[0].text == "moe_q4" for row in traffic_table(study).rows)
    words = " ".join(traffic_sentences(study))
    assert "18.1 ms" in words and "1138 GB/s" in words


def test_a_token_that_reads_faster_than_memory_gives_is_said_to_come_from_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = mlsd.open_study(whole_study(tmp_path / "s.sqlite"))
    passes = [one for one in study.read_passes if one.source == "plain decoding"]
    for share, remarked in ((0.5, True), (2.0, False)):
        roof = Roof(name="here", gb_s=share * min(one.gb_s for one in passes), gflop_s=None, source="measured")
        monkeypatch.setitem(study.__dict__, "read_passes", [msgspec.structs.replace(one, roof=roof) for one in passes])
        assert any("the weights stay in a cache" in sentence for sentence in traffic_sentences(study)) is remarked

"""Bandwidth of plain decoding from known bytes and times, and what a faster memory could give."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.study.memory import faster_memory, memory_use
from mlsd.analysis.study.study import Study, read_study
from mlsd.errors import AnalysisError
from mlsd.measure.store.study import Store
from tests.analysis.studies import DENSE, MOE, blocks, case, failed, whole_study, write


def read(path: Path) -> Study:
    with Store.open(path, read_only=True) as store:
        return read_study(store)


def test_bandwidth_is_the_bytes_of_a_token_over_its_time(tmp_path: Path) -> None:
    study = read(write(tmp_path / "s.sqlite", blocks(MOE, noise=0.0) + blocks(DENSE, "D", noise=0.0)))
    moe, dense = memory_use(study)
    assert moe.t_one_ms.value == pytest.approx(10.0)
    assert moe.bandwidth_gb_s == pytest.approx(4e6 / 10e-3 / 1e9)  # 4 MB of its 8 are active
    assert moe.peak_fraction == pytest.approx(moe.bandwidth_gb_s / 100)
    assert dense.bandwidth_gb_s == pytest.approx(4e6 / 10e-3 / 1e9)


def test_a_faster_memory_gives_between_nothing_and_its_factor(tmp_path: Path) -> None:
    study = read(whole_study(tmp_path / "s.sqlite"))
    for found in faster_memory(study, 2.0):
        assert found.now_tok_s == pytest.approx(100, rel=0.05)
        assert found.most_tok_s == pytest.approx(2 * found.now_tok_s)
        if found.fitted_tok_s is not None:
            assert found.now_tok_s <= found.fitted_tok_s <= found.most_tok_s


def test_a_fitted_bandwidth_says_how_much_of_a_pass_is_reading(tmp_path: Path) -> None:
    study = read(write(tmp_path / "s.sqlite", blocks(DENSE, noise=0.0)))
    (curve,) = study.curve_fits
    study.__dict__["curve_fits"] = [msgspec.structs.replace(curve, bandwidth_gb_s=0.8)]  # 4 MB take 5 of the 10 ms
    (found,) = faster_memory(study, 2.0)
    assert found.fitted_tok_s == pytest.approx(1000 / 7.5)


def test_a_study_without_passes_says_so(tmp_path: Path) -> None:
    of = case(MOE, "code", 4)
    with pytest.raises(AnalysisError, match="single-token pass"):
        memory_use(read(write(tmp_path / "s.sqlite", [(of, failed(of, 1))])))

"""Synthetic models of known bytes, and a read that really reads."""

import json
from pathlib import Path

import msgspec
import pytest

from mlsd.cli import main
from mlsd.engine.context import context_options
from mlsd.errors import InputError
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.measure.parent import bandwidth
from mlsd.measure.parent.bandwidth import measure_bandwidth, shape_of_bytes, stream_read
from mlsd.records import EngineOptions
from mlsd.store.rows import StreamRead, TimedPass
from mlsd.store.store import Store
from tests.measure.examples import ENVIRONMENT


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_0", "Q4_K", "F16"])
def test_a_model_weighs_what_was_asked_and_only_its_width_differs(quant: str) -> None:
    shapes = [shape_of_bytes(n_bytes, quant) for n_bytes in (50_000_000, 300_000_000)]
    for shape, wanted in zip(shapes, (50_000_000, 300_000_000), strict=True):
        assert from_shape(shape, quant=quant).weight.active.n_bytes == pytest.approx(wanted, rel=0.06)
    assert shapes[0].n_layers == shapes[1].n_layers
    assert shapes[0].n_embd == shapes[1].n_embd


def test_sizes_that_say_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="fixed time"):
        measure_bandwidth(sizes_mb=(100,), quants=(), repeats=1, read_mb=64, engine=EngineOptions())
    with pytest.raises(InputError, match="too few"):
        shape_of_bytes(1_000_000, "Q8_0")
    with pytest.raises(InputError, match="caches"):
        stream_read(1 << 20, 1, 3)
    with pytest.raises(InputError):
        shape_of_bytes(50_000_000, "Q99")


def test_a_read_has_a_speed_for_every_repeat() -> None:
    speeds = stream_read(1 << 26, 2, 3)
    assert len(speeds) == 3
    assert all(0.05 < speed < 10_000 for speed in speeds)


@pytest.mark.heavy
def test_the_command_measures_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--sizes-mb", "20,40", "--quant", "Q8_0", "--repeats", "2", "--read-mb", "64", "--n-threads", "1"]
    database = tmp_path / "c.sqlite"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "models"))
    (tmp_path / "models").mkdir()
    main(["calibrate", "memory", *arguments, "--db", str(database), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["lines"][0]["bandwidth_gb_s"]["value"] > 0
    assert found["verdict"]["reason"]
    assert "1" in found["stream_gb_s"]
    assert len(found["passes"]) == 4
    assert list((tmp_path / "models").iterdir()) == []  # the models are gone
    with Store.open(database, read_only=True) as store:
        assert [p.ms for _, p in store.figures(TimedPass)] == [p["ms"] for p in found["passes"]]
        assert {r.n_threads for _, r in store.figures(StreamRead)} == {int(n) for n in found["stream_gb_s"]}
        assert [run.status for run in store.runs()] == ["finished"]


def test_passes_run_on_the_threads_that_are_recorded_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "time_models", lambda models, engine, repeats: ())
    monkeypatch.setattr(bandwidth, "write_models", lambda *asked: [])
    monkeypatch.setattr(bandwidth, "run_info", lambda engine: None)
    read = {"logical_cores": 12, "performance_cores": 7}
    monkeypatch.setattr(bandwidth, "read_environment", lambda found: msgspec.structs.replace(ENVIRONMENT, **read))
    found = measure_bandwidth(
        tmp_path / "b.sqlite", sizes_mb=(20, 40), quants=("Q8_0",), repeats=1, read_mb=64, engine=EngineOptions()
    )
    used = context_options(EngineOptions(), 1).n_threads
    assert found.n_threads == used
    assert used in {read.n_threads for read in found.reads}

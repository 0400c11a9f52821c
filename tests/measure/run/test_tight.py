"""Where memory holds one arm at a time, every command closes those that are idle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.hardware import read_environment
from mlsd.measure import process
from mlsd.measure.lab.machine import Piece, measure, read_origin
from mlsd.measure.messages import BuildJob, Done
from mlsd.measure.process import run_info
from mlsd.measure.run import memory
from mlsd.measure.run.compare import CompareRequest, compare
from mlsd.measure.run.runs import bench
from mlsd.measure.run.tune import TuneRequest, tune
from mlsd.planning.job import Job
from mlsd.planning.prepare import BenchRequest, prepare_bench
from mlsd.records import DrafterSpec, EngineOptions


def request(tiny: Path, **asked: Any) -> BenchRequest:
    engine = EngineOptions(n_threads=1)
    return BenchRequest(target=str(tiny / "llama.gguf"), n_predict=8, repeats=2, engine=engine, **asked)


def run_bench(tiny: Path, db: Path) -> None:
    bench(request(tiny, drafters=("pld",), gammas=(2,)), db)


def run_tune(tiny: Path, db: Path) -> None:
    setting = msgspec.structs.replace(request(tiny), repeats=3)
    tune(TuneRequest(drafter=DrafterSpec(name="pld"), setting=setting, trials=1), db)


def run_compare(tiny: Path, db: Path) -> None:
    asked = CompareRequest(builds=(".", "."), bench=request(tiny, drafters=("pld",), gammas=(2,)), control=False)
    compare(asked, lambda store, session, n_blocks: None if n_blocks else ("0", "1"), db)


def run_lab(tiny: Path, db: Path) -> None:
    (job,) = prepare_bench(
        BenchRequest(target="tiny-dense", drafters=("pld",), gammas=(2,), n_predict=8, repeats=1)
    ).plan.loads
    origin = read_origin(read_environment(run_info(EngineOptions())))
    piece = Piece(ticket="1", job=job, origin=origin)
    done: list[Done] = []
    assert measure(piece, may_pull=False, wanted=lambda: True, say=done.append) == (None, False)
    assert all(event.trial.status == "ok" for event in done)


@pytest.mark.parametrize("command", [run_bench, run_tune, run_compare, run_lab])
def test_a_command_on_a_machine_where_memory_is_tight_has_one_arm_open_at_a_time(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[Path, Path], None]
) -> None:
    told: list[Job] = []
    send = process._Worker.send

    def heard(worker: process._Worker, said: Any) -> None:
        told.extend(job for job in (said.job if isinstance(said, BuildJob) else said,) if isinstance(job, Job))
        send(worker, said)

    monkeypatch.setattr(process._Worker, "send", heard)
    monkeypatch.setattr(memory, "fit", lambda *sizes: ("tight", "for a test"))
    command(tiny, tmp_path / "tight.sqlite")
    assert told
    assert all(job.one_arm for job in told)

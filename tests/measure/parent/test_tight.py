"""Where memory holds one arm at a time, every command closes those that are idle."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlsd.measure import process
from mlsd.measure.parent import memory
from mlsd.measure.parent.compare import CompareRequest, compare
from mlsd.measure.parent.requests import bench
from mlsd.measure.parent.tune import tune
from mlsd.planning.job import Job
from mlsd.planning.options import SearchOptions
from mlsd.planning.request import BenchRequest, bench_request
from mlsd.records import EngineOptions

QUICK: dict[str, Any] = {"n_predict": 8, "repeats": 2, "engine": EngineOptions(n_threads=1)}


def request(tiny: Path, **asked: Any) -> BenchRequest:
    return bench_request(str(tiny / "llama.gguf"), **QUICK, **asked)


def run_bench(tiny: Path, db: Path) -> None:
    bench(request(tiny, drafters=("pld",), gammas=(2,)), db)


def run_tune(tiny: Path, db: Path) -> None:
    tune(SearchOptions(tiny / "llama.gguf", "pld", settings=1, db=db, **{**QUICK, "repeats": 3}))


def run_compare(tiny: Path, db: Path) -> None:
    asked = CompareRequest(builds=(".", "."), bench=request(tiny, drafters=("pld",), gammas=(2,)), control=False)
    compare(asked, lambda store, session, n_blocks: None if n_blocks else ("0", "1"), db)


class JobReceived(BaseException):
    """A worker got a job."""


@pytest.mark.parametrize("command", [run_bench, run_tune, run_compare])
def test_a_command_on_a_machine_where_memory_is_tight_has_one_arm_open_at_a_time(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[Path, Path], None]
) -> None:
    start = process.Worker.__init__

    def hired(worker: process.Worker, function: str, arguments: Any, variables: Any = None) -> None:
        if isinstance(job := arguments.get("job"), Job):
            assert job.one_arm
            raise JobReceived
        start(worker, function, arguments, variables)

    monkeypatch.setattr(process.Worker, "__init__", hired)
    monkeypatch.setattr(memory, "fit", lambda *sizes: ("tight", "for a test"))
    with pytest.raises(JobReceived):
        command(tiny, tmp_path / "tight.sqlite")

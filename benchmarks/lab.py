"""A lab: what waiting and coordinating cost, and 10,000 jobs on 64 simulated machines; kill_study kills its parts."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.harness import Result, interleaved, of_samples, ratios, smollm2
from mlsd.clock import MonotonicClock
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import make_rollback
from mlsd.lab.cluster import Cluster, make_certificate
from mlsd.lab.coordinator import run_lab
from mlsd.measure.parent.blocks import Experiment, RunSettings, Watcher
from mlsd.planning.job import Slot
from mlsd.records import Trial
from mlsd.store.store import Store
from tests.lab.fake import ORIGIN, plan
from tests.lab.processes import free_port, lab, wait_for

N_MACHINES, N_JOBS = 64, int(os.environ.get("MLSD_BENCH_JOBS", "10000"))
N_PAIRS, N_DECODED = 60, 64
# 64 machines that answer at once, in a process of their own, behind a real scheduler.
_SIMULATED = """
import asyncio, itertools, sys
from mlsd.lab import cluster, machine
from mlsd.measure.messages import BlockMeasured
from tests.lab.fake import card, measured
def measure(job, origin, *, may_pull, wanted, say):
    for block in job.blocks:
        say(BlockMeasured(slots=(), trials=tuple(map(measured, block.slots))))
    return machine.Ended()
hosts = itertools.count(200)
machine.read_card = lambda engine, may_pull: card(chr(next(hosts)))
machine.measure = measure
async def main(port, n):
    certificate = open(sys.argv[3]).read()
    scheduler = await cluster.open_scheduler("127.0.0.1", port, certificate)
    joining = cluster.Joining(address=scheduler.address, certificate=certificate, may_pull=False)
    workers = [await cluster.open_machine(joining) for _ in range(n)]
    print("ready", flush=True)
    await scheduler.finished()
asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


def run() -> Iterator[Result]:
    yield from simulated()
    yield overhead()
    yield idle_machine()


class _Memory(Watcher):
    def __init__(self) -> None:
        self.n, self.by_n = 0, dict[int, int]()

    def trial(self, slot: Slot, trial: Trial) -> None:
        """Look at this process once in a thousand trials."""
        self.n += 1
        if self.n % 1000 == 0:
            self.by_n[self.n] = psutil.Process().memory_info().rss


def simulated() -> Iterator[Result]:
    """Jobs of two trials; the coordinator's memory from a tenth of them on."""
    wanted, port, memory = plan(n_loads=max(1, N_JOBS // N_MACHINES), n_blocks=1), free_port(), _Memory()
    with tempfile.TemporaryDirectory() as name:
        yield from _simulated(Path(name), wanted, port, memory)


def _simulated(folder: Path, wanted: Experiment, port: int, memory: _Memory) -> Iterator[Result]:
    certificate = folder / "lab.pem"
    make_certificate(certificate)
    command = [sys.executable, "-c", _SIMULATED, str(port), str(N_MACHINES), str(certificate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with Store.open(folder / "s.sqlite") as store:
            with Cluster(f"127.0.0.1:{port}", certificate) as cluster:
                wait_for(lambda: len(cluster.machines()) == N_MACHINES, "machines are missing", 300)
                started = time.perf_counter()
                outcome = run_lab(wanted, ORIGIN, cluster, store, RunSettings(), memory)
                seconds = time.perf_counter() - started
            problems = store.check()
    finally:
        process.kill()
        process.communicate()
    n_ok = sum(place.outcome.n_ok for place in outcome.places)
    assert not problems and n_ok == 3 * len(wanted.loads) * N_MACHINES, n_ok
    first, last = memory.by_n[3000 * max(1, N_JOBS // 10_000)], memory.by_n[max(memory.by_n)]
    name = f"{N_JOBS} jobs on {N_MACHINES} simulated machines"
    yield of_samples(f"{name}, a second", [N_JOBS / seconds], "jobs/s")
    yield of_samples(f"{name}, coordinator at a tenth", [first / 1e6], "MB")
    yield of_samples(f"{name}, coordinator at the end", [last / 1e6], "MB")
    yield of_samples(f"{name}, growth", [last / first], "ratio", at_most=1.1)


_LONG = ("B", "--profile", "tiny", "--n-threads", "1", "--repeats", "2")


def overhead() -> Result:
    """Wall time of a suite on a lab of one machine over that of `mlsd run` alone."""
    with tempfile.TemporaryDirectory() as name, lab(Path(name), 1) as processes:
        folder, numbers = Path(name), iter(range(1000))
        with processes.cluster() as cluster:
            wait_for(lambda: bool(cluster.machines()), "the machine does not join")
        env = processes.env("machine0")

        def alone() -> float:
            database = str(folder / f"{next(numbers)}.sqlite")
            return _seconds([sys.executable, "-m", "mlsd", "run", *_LONG, "--db", database], env)

        def together() -> float:
            started = time.perf_counter()
            assert processes.run(folder / f"{next(numbers)}.sqlite", *_LONG).wait() == 0, processes.output()
            return time.perf_counter() - started

        figures = interleaved({"alone": alone, "lab": together}, 3)
    shares = ratios(figures["lab"], figures["alone"])
    return of_samples("suite on a lab of one over mlsd run alone", shares, "ratio", at_most=1.02)


def idle_machine() -> Result:
    """Plain decoding beside a joined machine that waits, over the same while that machine is stopped (SIGSTOP)."""
    with (
        tempfile.TemporaryDirectory() as name,
        lab(Path(name), 1) as processes,
        processes.cluster() as cluster,
        LlamaModel(smollm2()) as model,
        open_context(model, ContextOptions(n_ctx=512, n_threads=1)) as context,
    ):
        wait_for(lambda: bool(cluster.machines()), "the machine does not join")
        waiting = [psutil.Process(process.pid) for process in processes.machines.values()]
        prompt, rollback = context.tokenizer.tokenize("def fibonacci(n):\n"), make_rollback("trim", context)

        def decode_ns() -> float:
            limits = GenerationLimits(n_predict=N_DECODED)
            return generate(context, NoDrafter(), rollback, prompt, limits, MonotonicClock()).decode_ns

        def stopped() -> float:
            for process in waiting:
                process.suspend()
            try:
                return decode_ns()
            finally:
                for process in waiting:
                    process.resume()

        decode_ns()
        figures = interleaved({"beside": decode_ns, "stopped": stopped}, N_PAIRS)
    shares = ratios(figures["beside"], figures["stopped"])
    return of_samples("decode time beside an idle joined machine", shares, "ratio", at_most=1.01)


def _seconds(command: list[str], env: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=env)
    return time.perf_counter() - started

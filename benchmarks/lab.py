"""A lab: what waiting and coordinating cost; kill_study kills its parts."""

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
from mlsd.lab.machine import status
from tests.lab.processes import lab, wait_for

N_PAIRS, N_DECODED = 60, 64


def run() -> Iterator[Result]:
    yield overhead()
    yield idle_machine()


_LONG = ("B", "--profile", "tiny", "--n-threads", "1", "--repeats", "2")


def overhead() -> Result:
    """Wall time of a suite on a lab of one machine over that of `mlsd run` alone."""
    with tempfile.TemporaryDirectory() as name, lab(Path(name), 1) as processes:
        folder, numbers = Path(name), iter(range(1000))
        with processes.cluster() as cluster:
            wait_for(lambda: bool(cluster.ask(status)), "the machine does not join")
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
        wait_for(lambda: bool(cluster.ask(status)), "the machine does not join")
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

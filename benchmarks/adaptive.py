"""Gamma chosen round by round against the best fixed one, on the workloads of suite E.

Time is the processor's for the one thread that computes: other programs lengthen it less than they do a wall clock's.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.harness import Result, of_samples, ratios
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.planning.plan import plan_bench
from mlsd.planning.request import bench_request
from mlsd.planning.suite import load_suites
from mlsd.records import AUTO, EngineOptions

FIXED = (1, 2, 4, 8)
REPEATS = 7
AT_LEAST = 0.98
PAIRS = {"tiny-moe": ("draft-model", "pld"), "tiny-dense": ("draft-model", "pld", "layer-skip:mode=sync,fraction=0.33")}


class ProcessorClock:
    """Of the calling thread; with one thread llama.cpp computes in it."""

    def now_ns(self) -> int:
        """Nanoseconds that it has computed."""
        return time.thread_time_ns()


def run() -> Iterator[Result]:
    prompts = load_suites("E")[0].parts[0].prompts
    for target, methods in PAIRS.items():
        for method in methods:
            yield from against_fixed(target, method, prompts)


def against_fixed(target: str, method: str, prompts: tuple[str, ...]) -> Iterator[Result]:
    """Every workload: auto over the fixed gamma with the best median, repeat by repeat; and over plain decoding."""
    request = bench_request(
        target=target,
        drafts=("tiny-draft",) if method == "draft-model" else (),
        drafters=(method,),
        gammas=(*FIXED, AUTO),
        prompts=prompts,
        n_predict=96,
        repeats=REPEATS,
        engine=EngineOptions(n_threads=1),
    )
    (job,) = plan_bench(request).loads
    found: dict[tuple[str, int | str], list[float]] = defaultdict(list)
    with Arms(job, ProcessorClock(), ProbeCache()) as arms:
        for case in {slot.case_id: slot.case for slot in job.slots}.values():
            arms.warm_up(case, whole=True)
        for slot in job.slots:  # blocks of all arms, in random order
            arms.refer(slot)
            trial = arms.run(slot)
            assert trial.decode_ns is not None and trial.valid, trial.invalid_reason
            name = AUTO if slot.case.drafter.adaptive else slot.case.gamma
            found[slot.case.prompt.key, name].append((len(trial.tokens) - 1) / trial.decode_ns)
    for prompt in prompts:
        best = max(FIXED, key=lambda gamma: statistics.median(found[prompt, gamma]))
        auto = found[prompt, AUTO]
        name = f"{target}, {method.partition(':')[0]}, {prompt}"
        yield of_samples(
            f"{name}: auto over gamma {best}", ratios(auto, found[prompt, best]), "ratio", at_least=AT_LEAST
        )
        yield of_samples("... auto over plain", ratios(auto, found[prompt, 0]), "ratio")

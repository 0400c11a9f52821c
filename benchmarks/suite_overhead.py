"""What a suite costs beyond its timed work, and what the study's way of running one would have cost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.harness import Result, interleaved, of_samples, ratios
from benchmarks.models import smollm2
from mlsd.hardware import read_environment
from mlsd.measure.process import run_job
from mlsd.measure.run.runner import RunPlan, run_plan
from mlsd.planning.job import Job
from mlsd.planning.plan import plan_bench
from mlsd.planning.prepare import prepare_study
from mlsd.planning.request import Overrides, bench_request, study_request
from mlsd.records import EngineOptions
from mlsd.store.store import Store

ENGINE = EngineOptions(n_threads=1)


def run() -> Iterator[Result]:
    yield tiny_suite()
    yield against_a_process_a_trial(16, repeats=3, at_least=2.0)
    yield against_a_process_a_trial(256, repeats=1, at_least=None)


def tiny_suite() -> Result:
    """Wall time of suite B on the tiny family over the sum of its load, prefill and decode times."""
    request = study_request(("B",), profile="tiny", overrides=Overrides(engine=ENGINE))
    jobs = prepare_study(request, make=True).plan.loads
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "b.sqlite") as store:
        started = time.perf_counter()
        run_plan(RunPlan(loads=jobs, environment=read_environment()), run_job, store)
        wall_s = time.perf_counter() - started
        trials = [stored.trial for stored in store.trials(rounds=False)]
    timed_ns = sum(
        (t.load_ns or 0) + (t.draft_prefill_ns or 0) + (t.prefill_ns or 0) + (t.decode_ns or 0) for t in trials
    )
    return of_samples("tiny suite B, wall over timed work", [wall_s * 1e9 / timed_ns], "ratio", at_most=1.10)


def against_a_process_a_trial(n_predict: int, *, repeats: int, at_least: float | None) -> Result:
    """A fresh process and model load for every trial (the study's way) over one worker for all, on SmolLM2."""
    model = str(smollm2())
    request = bench_request(
        target=model,
        drafts=(model,),
        gammas=(4,),
        prompts=("factual",),
        n_predict=n_predict,
        rollback="trim",
        engine=ENGINE,
    )
    (job,) = plan_bench(request).loads
    one_each = tuple(msgspec.structs.replace(job, slots=(slot,)) for slot in job.slots)
    figures = interleaved({"ours": lambda: _wall_s((job,)), "theirs": lambda: _wall_s(one_each)}, repeats)
    name = f"process a trial over one worker, SmolLM2, n_predict {n_predict}"
    return of_samples(name, ratios(figures["theirs"], figures["ours"]), "ratio", at_least=at_least)


def _wall_s(jobs: tuple[Job, ...]) -> float:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s.sqlite") as store:
        started = time.perf_counter()
        run_plan(RunPlan(loads=jobs, environment=read_environment()), run_job, store)
        return time.perf_counter() - started

"""Predicted against measured: Macs that nobody measured here, and gammas that were left out here.

Published rows with a stated acceptance, each source predicted by all others; controls of stated acceptance at the cost
of a real draft; then decode tok/s of the tiny family and of SmolLM2 with two drafts, each gamma left out in turn, both
sides timed on one thread: run that on an idle machine.
"""

import math
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks import published
from benchmarks.harness import Result, smollm2
from mlsd.analysis.predict.costs import costs_from_points, outcomes, scale_to, tok_per_s
from mlsd.analysis.predict.prediction_error import Prediction, leave_one_gamma_out
from mlsd.clock import MonotonicClock
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.measure.messages import CalibrateJob
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.calibrate import Calibration
from mlsd.models.library import resolve_model
from mlsd.planning.job import ModelFile
from mlsd.planning.plan import plan_bench
from mlsd.planning.prompts import load_prompt
from mlsd.planning.request import bench_request
from mlsd.records import EngineOptions
from mlsd.stats import grouped, mean_over
from mlsd.store.rows import CalibrationPoint
from mlsd.trials.rates import counts_of
from mlsd.trials.results import Measured, SessionPlan, arm_results

GAMMAS = (1, 2, 4, 8, 16)
PROMPTS = ("code", "factual")
REPLAYED, REPLAYED_GAMMAS = (0.5, 0.6, 0.7, 0.8, 0.9), (2, 4, 8)
ENGINE = EngineOptions(n_threads=1)
CLOCK = MonotonicClock()
_REPLAYED_PAIR = ("tiny-moe", "tiny-draft")


def run() -> Iterator[Result]:
    yield from published.stated_rows()
    with tempfile.TemporaryDirectory() as folder:
        predictions: list[Prediction] = []
        for name, target, draft, n_predict, slices in pairs(Path(folder)):
            pair = predict(target, draft, n_predict, slices)
            predictions += pair
            yield from results(name, pair)
        yield from results("all pairs", predictions, bars=True)
        yield from replayed()


def replayed() -> Iterator[Result]:
    """Controls of stated acceptance at the cost of a real draft, beside what costs times that acceptance predict.

    Nothing of a control is known to its prediction: passes timed by themselves, scaled to plain decoding alone.
    """
    files = [ModelFile(ref=resolve_model(name).ref, path=str(resolve_model(name).path)) for name in _REPLAYED_PAIR]
    drafters = tuple(f"oracle:accept={rate},draft={files[1].path}" for rate in REPLAYED)
    points: list[CalibrationPoint] = []
    trials: list[Measured] = []
    for part in range(3):
        points += calibrate(files, part)
        trials += bench(files, "code", 192, part, drafters=drafters, gammas=REPLAYED_GAMMAS)
    key = files[0].ref.key
    arms = arm_results(trials, SessionPlan())
    costs = costs_from_points([p for p in points if p.model_key == key], [p for p in points if p.model_key != key])
    costs = scale_to(costs, [arm for arm in arms if arm.is_plain])
    logs = []
    for arm in (arm for arm in arms if arm.control and arm.tok_s is not None):
        ends = outcomes((float(arm.case.drafter.options["accept"]),), arm.case.gamma)
        logs.append(math.log(tok_per_s(costs, ends) / (arm.tok_s or math.nan)))
    mean = mean_over(logs, list(range(len(logs))))
    name = f"{len(logs)} replayed controls, {len(REPLAYED)} acceptances, gamma 2, 4, 8: predicted over measured"
    value, low, high = (math.exp(end or 0.0) for end in (mean.value, mean.low, mean.high))
    yield Result(name, value, low, high, "")
    errors = sorted(100 * abs(math.exp(log) - 1) for log in logs)
    yield Result("replayed controls: median error", statistics.median(errors), errors[0], errors[-1], "%")


def pairs(folder: Path) -> Iterator[tuple[str, Path, Path, int, int]]:
    """Name, target, draft, output tokens and slices of each pair."""
    draft = resolve_model("tiny-draft").path
    for target in ("tiny-moe", "tiny-dense"):
        yield f"{target} + tiny-draft", resolve_model(target).path, draft, 192, 5
    for noise in (0.02, 0.05):
        path = folder / f"smollm2-noise{noise}.gguf"
        perturb(smollm2(), path, noise=noise)
        yield f"SmolLM2 + itself, {100 * noise:g} % noise", smollm2(), path, 48, 3
        path.unlink()


def predict(target: Path, draft: Path, n_predict: int, slices: int) -> list[Prediction]:
    """Measure a pair and predict every gamma of it from the others, on every prompt.

    Calibration and trials take turns in slices, as the load of a shared machine changes over minutes.
    """
    files = [ModelFile(ref=resolve_model(str(path)).ref, path=str(path)) for path in (target, draft)]
    points: list[CalibrationPoint] = []
    trials: list[Measured] = []
    for part in range(slices):
        points += calibrate(files, part)
        for prompt in PROMPTS:
            trials += bench(files, prompt, n_predict, part)
    key = files[0].ref.key
    costs = costs_from_points([p for p in points if p.model_key == key], [p for p in points if p.model_key != key])
    by_prompt = grouped(arm_results(trials, SessionPlan()), lambda arm: arm.text).values()
    return [one for arms in by_prompt for one in leave_one_gamma_out(arms, costs)]


def calibrate(files: list[ModelFile], part: int) -> list[CalibrationPoint]:
    job = CalibrateJob(
        target=files[0],
        draft=files[1],
        engine=ENGINE,
        text=load_prompt("length-1024").text,
        rows=(1, *(gamma + 1 for gamma in GAMMAS)),
        depths=(128,),
        budget_s=1.0,
        least_repeats=3,
        seed=part,
    )
    with closing(Calibration(job, CLOCK)) as calibration:
        return [point for repeat in calibration.repeats() for point in repeat.points]


def bench(
    files: list[ModelFile],
    prompt_name: str,
    n_predict: int,
    part: int,
    *,
    drafters: tuple[str, ...] = (),
    gammas: tuple[int, ...] = GAMMAS,
) -> list[Measured]:
    request = bench_request(
        target=files[0].path,
        drafts=() if drafters else (files[1].path,),
        drafters=drafters,
        gammas=gammas,
        prompts=(prompt_name,),
        n_predict=n_predict,
        repeats=1,
        engine=ENGINE,
        seed=part,
    )
    (job,) = plan_bench(request).loads
    cases = {slot.case_id: slot.case for slot in job.slots}.values()
    with Arms(job, CLOCK, ProbeCache()) as arms:
        for case in cases:
            arms.warm_up(case)
        ran = [(slot.case, arms.run(slot)) for slot in job.slots]
    return [Measured(case, trial, counts_of(trial), 1_000 * part + trial.block) for case, trial in ran]


def results(name: str, predictions: list[Prediction], *, bars: bool = False) -> Iterator[Result]:
    errors = [100 * abs(p.error) for p in predictions]
    spreads = [100 * (p.spread or 0.0) for p in predictions]
    median, p95 = statistics.median(errors), float(np.quantile(errors, 0.95))
    low, high = min(errors), max(errors)
    for label, value, limit in (("median", median, 5.0), ("95th percentile", p95, 15.0)):
        yield Result(
            f"{name}: |predicted/measured - 1|, {label}",
            value,
            low,
            high,
            "%",
            f"<= {limit:g}" if bars else "",
            value <= limit if bars else None,
        )
    yield Result(f"{name}: spread of the measurement", statistics.median(spreads), min(spreads), max(spreads), "%")

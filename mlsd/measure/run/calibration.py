"""Timing a model's passes into a study database: T(k), and the experts that they read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mlsd.engine.llama.native import BackendInfo
from mlsd.errors import InputError
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_environment
from mlsd.measure.messages import CalibrateJob, Passes, Spent
from mlsd.measure.process import run_calibration, run_info
from mlsd.measure.run.runner import machine_lock, recorded_run
from mlsd.measure.store.newest import newest_or_new
from mlsd.measure.store.rows import CalibrationPoint, Coverage, ExpertLoad, model_key
from mlsd.measure.store.store import Store
from mlsd.models.library import resolve_model
from mlsd.planning.job import ModelFile
from mlsd.planning.prompts import load_prompt, prompt_from_file
from mlsd.records import EngineOptions, ModelFacts, Record

_ROWS = (*range(1, 34), 48, 64)
_WINDOWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33)


class CalibrationRequest(Record, frozen=True, kw_only=True):
    """What to time; models are GGUF paths or ids."""

    model: str
    draft: str | None = None
    rows: tuple[int, ...] = _ROWS  # k of T(k)
    depths: tuple[int, ...] = (128,)  # positions in the context before a pass
    text: str | None = None  # a file of real text; None: a shipped one
    coverage: bool = True  # ask a mixture for its experts
    budget_s: float = 120.0
    precision: float = 0.02  # end when all intervals are narrower
    engine: EngineOptions = EngineOptions()
    seed: int = 0  # of the order of passes


class CalibrationResult(Record, frozen=True, kw_only=True):
    """What one calibration found."""

    database: str
    models: tuple[ModelFacts, ...]  # the target, then the draft
    run_id: int
    n_repeats: int
    half_width: float | None  # of the widest 95 % interval of a mean, relative
    target_points: tuple[CalibrationPoint, ...]
    draft_points: tuple[CalibrationPoint, ...]
    coverage: tuple[Coverage, ...]
    loads: tuple[ExpertLoad, ...]
    spent: Spent | None  # what the parts took


def calibrate(
    request: CalibrationRequest, db: Path | None = None, on_repeat: Callable[[int, float | None], None] | None = None
) -> CalibrationResult:
    """Calibrate into `db`, by default the newest study database or a first one.

    Raises: InputError or ModelFileError before anything is timed, and what `run_and_store` raises.
    """
    path = db or newest_or_new()
    job, models = _job(request)
    with Store.open(path) as store:
        return run_and_store(job, store, run_info(job.engine), models, on_repeat)


def _job(request: CalibrationRequest) -> tuple[CalibrateJob, list[ModelFacts]]:
    if not request.rows or min(request.rows) < 1:
        raise InputError("--rows must be positive numbers of positions.", hint="Like --rows 1,2,3,5,9,17.")
    if 1 not in request.rows:
        raise InputError("--rows must hold 1: T(1) is what everything is compared with.")
    if not request.depths or min(request.depths) < 1:
        raise InputError("--depth must be at least 1 position.")
    if request.budget_s <= 0 or request.precision <= 0:
        raise InputError("--budget-s and --precision must be above 0.")
    models = [resolve_model(text, make=True) for text in (request.model, request.draft) if text is not None]
    files = [ModelFile(ref=model.ref, path=str(model.path)) for model in models]
    facts = [model_facts(model.path, ref=model.ref) for model in models]
    text = load_prompt("length-1024") if request.text is None else prompt_from_file(request.text)
    job = CalibrateJob(
        target=files[0],
        draft=files[1] if request.draft is not None else None,
        engine=request.engine,
        text=text.text,
        widths=tuple(sorted(set(request.rows))),
        depths=tuple(sorted(set(request.depths))),
        windows=_WINDOWS if facts[0].n_experts and request.coverage else (),
        n_experts=facts[0].n_experts or 0,
        budget_s=request.budget_s,
        precision=request.precision,
        seed=request.seed,
    )
    return job, facts


def run_and_store(
    job: CalibrateJob,
    store: Store,
    backend: BackendInfo,
    models: Sequence[ModelFacts],
    on_repeat: Callable[[int, float | None], None] | None = None,
) -> CalibrationResult:
    """Calibrate in a worker; every repeat is committed before the next one starts.

    Raises: LockError while another run measures on this machine, EngineError, WorkerError, StoreError.
    """
    points: list[CalibrationPoint] = []
    coverage: tuple[Coverage, ...] = ()
    loads: tuple[ExpertLoad, ...] = ()
    n_repeats, half_width = 0, None
    spent: Spent | None = None
    with machine_lock(), recorded_run(store, read_environment(backend), stored_plan(job), job.seed) as run_id:
        store.add_models(models)
        for event in run_calibration(job):
            if isinstance(event, Passes):
                store.add_calibration(run_id, event.points)
                points += event.points
                n_repeats, half_width = n_repeats + 1, event.half_width
                if on_repeat is not None:
                    on_repeat(n_repeats, half_width)
            elif isinstance(event, Spent):
                spent = event
            else:
                store.add_coverage(run_id, event.coverage, event.loads)
                coverage, loads = event.coverage, event.loads
    target = model_key(job.target.ref.sha256, job.target.ref.id)
    return CalibrationResult(
        database=str(store.path),
        models=tuple(models),
        run_id=run_id,
        n_repeats=n_repeats,
        half_width=half_width,
        target_points=tuple(p for p in points if p.model_key == target),
        draft_points=tuple(p for p in points if p.model_key != target),
        coverage=coverage,
        loads=loads,
        spent=spent,
    )


def stored_plan(job: CalibrateJob) -> dict[str, Any]:
    """What was asked for, as a run records it: models by name and hash, without the text and without a path."""
    plan: dict[str, Any] = msgspec.to_builtins(job)
    for role in ("target", "draft"):
        if plan[role] is not None:
            plan[role] = plan[role]["ref"]
    plan["text"] = hashlib.sha256(job.text.encode()).hexdigest()
    del plan["type"]
    return {"command": "calibrate", **plan}

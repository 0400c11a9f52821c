"""Timing a model's passes into a study database: T(k) by a calibration, the parts of a pass by a breakdown."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mlsd.engine.llama.native import BackendInfo
from mlsd.hardware import read_environment
from mlsd.measure.messages import BreakdownJob, CalibrateJob, Passes, Spent
from mlsd.measure.process import run_breakdown, run_calibration, run_info
from mlsd.measure.run.runner import machine_lock, recorded_run
from mlsd.measure.store.pass_shares import PassShares
from mlsd.measure.store.rows import CalibrationPoint, Coverage, ExpertLoad, model_key
from mlsd.measure.store.study import Store
from mlsd.records import ModelFacts, Record


class CalibrationResult(Record, frozen=True, kw_only=True):
    """What one calibration found."""

    run_id: int
    n_repeats: int
    half_width: float | None  # of the widest 95 % interval of a mean, relative
    target_points: tuple[CalibrationPoint, ...]
    draft_points: tuple[CalibrationPoint, ...]
    coverage: tuple[Coverage, ...]
    loads: tuple[ExpertLoad, ...]
    spent: Spent | None  # what the parts took


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


def profile_and_store(job: BreakdownJob, db: Path | None, models: Sequence[ModelFacts] = ()) -> tuple[PassShares, ...]:
    """Profile passes in a worker; with `db`, a run of its own holds them beside the machine and the models' facts.

    The caller holds the machine's lock. Raises: StoreError before anything is profiled, EngineError, WorkerError.
    """
    if db is None:
        return run_breakdown(job).shares
    plan = {"command": "breakdown", **msgspec.to_builtins(msgspec.structs.replace(job, text=""))}
    environment = read_environment(run_info(job.engine))
    with Store.open(db) as store, recorded_run(store, environment, plan) as run_id:
        store.add_models(models)
        shares = run_breakdown(job).shares
        store.add_shares(run_id, shares)
    return shares

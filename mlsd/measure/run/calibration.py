"""Timing a model's passes into a study database: T(k), and the experts that they read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlsd.engine.llama.native import BackendInfo
from mlsd.errors import InputError
from mlsd.hardware import read_environment
from mlsd.measure.messages import CalibrateJob, Passes, Spent
from mlsd.measure.process import run_calibration, run_info
from mlsd.measure.run.pairs import PairRequest, find_pair, stored_plan
from mlsd.measure.run.runner import Tell, machine_lock, recorded_run, silent
from mlsd.measure.store.newest import newest_or_new
from mlsd.measure.store.rows import CalibrationPoint, Coverage, ExpertLoad, model_key
from mlsd.measure.store.store import Store
from mlsd.planning.prompts import load_prompt, prompt_from_file
from mlsd.records import ModelFacts, Record
from mlsd.units import format_percent

_ROWS = (*range(1, 34), 48, 64)
_WINDOWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33)


class CalibrationRequest(PairRequest, frozen=True, kw_only=True):
    """What to time."""

    rows: tuple[int, ...] = _ROWS
    depths: tuple[int, ...] = (128,)  # positions in the context before a pass
    text: str | None = None  # a file of real text; None: a shipped one
    coverage: bool = True  # ask a mixture for its experts
    budget_s: float = 120.0
    precision: float = 0.02  # end when all intervals are narrower
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


def calibrate(request: CalibrationRequest, db: Path | None = None, tell: Tell = silent) -> CalibrationResult:
    """Calibrate into `db`, by default the newest study database or a first one.

    Raises: InputError or ModelFileError before anything is timed, and what `run_and_store` raises.
    """
    path = db or newest_or_new()
    job, models = _job(request)
    with Store.open(path) as store:
        return run_and_store(job, store, run_info(job.engine), models, tell)


def _job(request: CalibrationRequest) -> tuple[CalibrateJob, list[ModelFacts]]:
    if 1 not in request.rows:
        raise InputError("--rows must hold 1: T(1) is what everything is compared with.")
    if not request.depths or min(request.depths) < 1:
        raise InputError("--depth must be at least 1 position.")
    if request.budget_s <= 0 or request.precision <= 0:
        raise InputError("--budget-s and --precision must be above 0.")
    target, draft, facts = find_pair(request)
    text = load_prompt("length-1024") if request.text is None else prompt_from_file(request.text)
    job = CalibrateJob(
        target=target,
        draft=draft,
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
    tell: Tell = silent,
) -> CalibrationResult:
    """Calibrate in a worker; every repeat is committed before the next one starts.

    Raises: LockError while another run measures on this machine, EngineError, WorkerError, StoreError.
    """
    points: list[CalibrationPoint] = []
    coverage: tuple[Coverage, ...] = ()
    loads: tuple[ExpertLoad, ...] = ()
    n_repeats, half_width = 0, None
    spent: Spent | None = None
    with (
        machine_lock(),
        recorded_run(store, read_environment(backend), stored_plan("calibrate", job), job.seed) as run_id,
    ):
        store.add_models(models)
        for event in run_calibration(job):
            if isinstance(event, Passes):
                store.add_calibration(run_id, event.points)
                points += event.points
                n_repeats, half_width = n_repeats + 1, event.half_width
                tell(f"repeat {n_repeats}, widest interval +-{format_percent(half_width)}")
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

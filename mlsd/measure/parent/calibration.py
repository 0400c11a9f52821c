"""Timing a model's passes into a study database: T(k), the experts that they read, and where the time of one goes."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from mlsd.engine.context import on_threads
from mlsd.errors import InputError, WorkerError
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_environment
from mlsd.measure.bench import Bench
from mlsd.measure.messages import BreakdownJob, CalibrateJob, Covered, Passes, Spent
from mlsd.measure.parent.blocks import Watcher, machine_lock, recorded_run
from mlsd.measure.process import Variables, answers, call, run_info
from mlsd.measure.worker import calibrate as worker
from mlsd.measure.worker.breakdown import break_down
from mlsd.models.library import resolve_model
from mlsd.planning.job import Job, ModelFile
from mlsd.planning.options import CalibrateOptions
from mlsd.planning.plan import plan_bench
from mlsd.planning.prompts import load_prompt, prompt_from_file
from mlsd.planning.request import BenchRequest
from mlsd.planning.time_estimate import preparation_line, preparation_s
from mlsd.records import DRAFT_MODEL, BackendInfo, Case, DrafterSpec, ModelFacts, Record, Status, Trial
from mlsd.store.newest import newest_or_new
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad, PassShares, WidthExactness
from mlsd.store.store import Store
from mlsd.units import format_percent

_WINDOWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33)


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
    exactness: tuple[WidthExactness, ...] = ()  # by width, of those that the budget allowed
    backend: str | None = None
    build: str | None = None  # of llama.cpp


def calibrate(asked: CalibrateOptions, watcher: Watcher | None = None) -> CalibrationResult:
    """Calibrate into a database, by default the newest study database or a first one.

    Raises: InputError before a model is looked for, ModelFileError, and what `time_and_store` raises.
    """
    target, draft, watcher = str(asked.target), asked.draft and str(asked.draft), watcher or Watcher()
    prompt = load_prompt("length-1024") if asked.text is None else prompt_from_file(str(asked.text))
    if 1 not in asked.rows:
        raise InputError("--rows must hold 1: T(1) is what everything is compared with.")
    if not asked.depths:
        raise InputError("--depth must hold a position.")
    models = [resolve_model(name, make=True) for name in (target, draft) if name]
    facts = [model_facts(model.path, ref=model.ref) for model in models]
    files = [ModelFile(ref=model.ref, path=str(model.path)) for model in models]
    n_experts = facts[0].n_experts or 0
    job = CalibrateJob(
        target=files[0],
        draft=files[1] if draft else None,
        engine=on_threads(asked.engine),
        text=prompt.text,
        rows=tuple(sorted(asked.rows)),
        depths=tuple(sorted(asked.depths)),
        budget_s=asked.budget_s,
        precision=asked.precision,
        seed=asked.seed,
        windows=_WINDOWS if n_experts else (),
        n_experts=n_experts,
    )
    doing, then = "Loading, and filling contexts", "then the budget begins"
    watcher.ready(preparation_line(doing, preparation_s(model.ref for model in models), then))
    return time_and_store(job, Path(asked.db) if asked.db else newest_or_new(), facts, watcher)


def check_rows(rows: Sequence[int]) -> None:
    """Raises: InputError for widths of passes that cannot be."""
    if not rows or min(rows) < 1:
        raise InputError("--rows must be positive numbers of positions.", hint="Like --rows 1,5,9.")


def run_calibration(
    job: CalibrateJob, variables: Variables = None
) -> Iterator[Passes | Covered | WidthExactness | Spent]:
    """Each repeat's passes, the experts of a mixture, and what it all took, from a worker; see `answers`."""
    doing = f"timing {job.target.ref.id}"
    return answers(partial(worker.calibrate, job), variables, doing=doing)


def time_and_store(
    job: CalibrateJob, db: Path, models: Sequence[ModelFacts] = (), watcher: Watcher | None = None
) -> CalibrationResult:
    """Calibrate in a worker; every repeat is committed before the next one starts.

    Raises: LockError while another run measures on this machine, EngineError, WorkerError, StoreError.
    """
    watcher, points = watcher or Watcher(), list[CalibrationPoint]()
    covered, spent, exactness = Covered(), None, list[WidthExactness]()
    n_repeats, half_width = 0, None
    with Store.open(db) as store:
        environment = read_environment(run_info(job.engine))
        with machine_lock(), recorded_run(store, environment, job.plan("calibrate"), job.seed) as run_id:
            store.add_models(models)
            for event in run_calibration(job):
                if isinstance(event, Passes):
                    store.add_figures(run_id, event.points)
                    points += event.points
                    n_repeats, half_width = n_repeats + 1, event.half_width
                    watcher.tell(f"repeat {n_repeats}, widest interval +-{format_percent(half_width)}")
                elif isinstance(event, Covered):
                    store.add_figures(run_id, [*event.coverage, *event.loads])
                    covered = event
                elif isinstance(event, WidthExactness):
                    store.add_figures(run_id, (event,))
                    exactness.append(event)
                else:
                    spent = event
    target = job.target.ref.key
    return CalibrationResult(
        database=str(db),
        models=tuple(models),
        run_id=run_id,
        n_repeats=n_repeats,
        half_width=half_width,
        target_points=tuple(p for p in points if p.model_key == target),
        draft_points=tuple(p for p in points if p.model_key != target),
        coverage=covered.coverage,
        loads=covered.loads,
        spent=spent,
        exactness=tuple(exactness),
        backend=environment.backend,
        build=environment.llama_cpp_build,
    )


_GAMMA = 4  # where neither the caller nor a preset says


class Breakdown(Record, frozen=True, kw_only=True):
    """What was profiled, and the rounds of one plain run."""

    job: BreakdownJob
    database: str  # where the shares are
    shares: tuple[PassShares, ...]
    case: Case | None  # of the rounds; None: no drafting
    trials: tuple[Trial, ...]
    backend: str | None = None  # that passes were profiled on

    @property
    def why_in_doubt(self) -> str | None:
        """Why shares are in doubt; None: they are not."""
        if not any(shares.in_doubt for shares in self.shares):
            return None
        if self.backend == "Metal":
            return (
                "Metal runs the parts of a pass ahead and side by side; a profiled pass waits for the GPU behind each "
                "part and forbids their reordering, so its parts do not add up to T."
            )
        return (
            "Profiling or other programs changed these passes too much: their parts differ from T by a quarter, or "
            "the profiled pass took twice as long as T, as with tiny models."
        )

    def network(self, shares: PassShares) -> str:
        """Whose pass it was."""
        if shares.drafting_key is not None:
            return f"draft of {self.job.drafter.name}"
        draft, target = self.job.draft, self.job.target
        return (draft if draft is not None and shares.model_key == draft.ref.key else target).ref.id


def breakdown(
    request: BenchRequest,
    *,
    rows: Sequence[int],
    depth: int,
    repeats: int,
    db: Path | None = None,
    watcher: Watcher | None = None,
) -> Breakdown:
    """Profile passes of what a bench of one method measures, into a run of its own, then run the method once.

    Passes have `rows` positions after `depth` others, in `repeats` turns of each kind; `db` is by default the newest
    study database. Without a gamma the method's preset counts, else 4.

    Raises: InputError and what the method refuses before anything is measured, LockError, StoreError, EngineError,
    WorkerError.
    """
    check_rows(rows)
    (load,) = plan_bench(request).loads
    arms = [case for case in load.cases.values() if case.arm == "sd"]
    # Where a draft is given, methods without one are asked for as well: those come first.
    case = min(arms, key=lambda arm: (arm.drafter.name == DRAFT_MODEL, abs(arm.gamma - _GAMMA)), default=None)
    job = BreakdownJob(
        target=load.target,
        draft=load.models[0] if load.models else None,
        drafter=DrafterSpec() if case is None else case.drafter,
        engine=request.engine,
        text=load_prompt("length-1024").text,
        rows=tuple(dict.fromkeys(rows)),
        depth=depth,
        repeats=repeats,
    )
    doing = "Loading" if case is None else f"Loading, and checking how {case.drafter.name} rolls back"
    seconds = preparation_s(load.refs, n_checked=int(case is not None))
    (watcher or Watcher()).ready(preparation_line(doing, seconds, "then passes are profiled"))
    with machine_lock():
        path, backend = db or newest_or_new(), run_info(job.engine)
        facts = [model_facts(model.path, ref=model.ref) for model in request.files]
        shares = profile_and_store(job, path, facts, backend)
        trials = () if case is None else _run(load, case)
    return Breakdown(job=job, database=str(path), shares=shares, case=case, trials=trials, backend=backend.backend)


def profile_and_store(
    job: BreakdownJob, db: Path, models: Sequence[ModelFacts], backend: BackendInfo
) -> tuple[PassShares, ...]:
    """Profile passes in a worker into a run of its own; the caller holds the machine's lock."""
    environment, plan = read_environment(backend), job.plan("breakdown")
    with Store.open(db) as store, recorded_run(store, environment, plan) as run_id:
        store.add_models(models)
        shares = call(partial(break_down, job), doing="profiling passes")
        store.add_figures(run_id, shares)
    return shares


def _run(load: Job, case: Case) -> tuple[Trial, ...]:
    """The trials of one method of a load."""
    slots = tuple(slot for slot in load.slots if slot.repeat == 0 and (slot.case == case or slot.case.arm == "ar"))
    job = msgspec.structs.replace(load, slots=slots, strict=True)
    with Bench(job) as bench:
        trials = tuple(trial for block in job.blocks for trial in bench.measure(block).trials if trial.arm == "sd")
    if not trials or trials[0].status is Status.FAILED:
        raise WorkerError(f"The rounds could not be run: {trials[0].reason if trials else 'no trial came back'}")
    return trials

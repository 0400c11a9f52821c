"""Suites and benches from request to result: plan, check, measure into a study, and say what is in doubt."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mlsd.engine.context import threads_of
from mlsd.errors import WorkerError
from mlsd.gguf_tools.read import model_facts
from mlsd.measure.bench import Bench
from mlsd.measure.messages import DistanceJob
from mlsd.measure.parent.blocks import (
    ALL,
    Choice,
    Experiment,
    RunOutcome,
    StartBench,
    Watcher,
    machine_lock,
    next_repeat,
    run_experiment,
)
from mlsd.measure.parent.checks import check_run
from mlsd.measure.parent.distances import study_distances
from mlsd.measure.parent.memory import Footprints, fit_here
from mlsd.measure.parent.race import Race, Stop
from mlsd.models.library import LocalModel
from mlsd.planning.job import Job
from mlsd.planning.plan import Plan, plan_bench, prepare_study
from mlsd.planning.question import Asked
from mlsd.planning.request import BenchRequest, StudyRequest
from mlsd.records import Environment, QualityWarning, Record
from mlsd.store import sessions
from mlsd.store.newest import BENCHES, study_path
from mlsd.store.rows import DraftDistance, TrialFilter
from mlsd.store.sessions import SessionTrials
from mlsd.store.store import Store
from mlsd.trials.intervals import Stopping
from mlsd.trials.on_or_off import Answer, answers, by_target, first_line
from mlsd.trials.results import BENCH, ArmResult, Measured, SessionPlan

Done = tuple[RunOutcome, tuple[QualityWarning, ...]]  # what a run did, and what speaks against it
Pull = Callable[[str], object]  # brings the model of an id to this machine


class StudyResult(Record, frozen=True, kw_only=True):
    """What a run did and where its trials are."""

    database: str
    outcome: RunOutcome
    warnings: tuple[QualityWarning, ...]
    answer: tuple[str, ...] = ()  # which setting to use, a sentence for each target


def answer_of(results: Sequence[ArmResult]) -> tuple[str, ...]:
    """Which setting to use, a sentence for each target."""
    decided = answers(results)
    return tuple(by_target(decided)) or (first_line(decided),)


def results_of(database: str | Path, run_id: int) -> list[ArmResult]:
    """Every arm of the sessions that a run went on with."""
    with Store.open(Path(database), create=False, read_only=True) as store:
        return [arm for session in sessions.of_run(store, run_id) for arm in session.results()]


class BenchResult(Record, frozen=True, kw_only=True):
    """The trials of one bench in the order measured, and where they are kept."""

    database: str
    outcome: RunOutcome
    warnings: tuple[QualityWarning, ...]
    trials: tuple[Measured, ...]
    models: tuple[LocalModel, ...] = ()  # every model of it, and where it lies
    results: tuple[ArmResult, ...] = ()  # every arm of its questions, whichever bench measured it
    stopped: Stop | None = None  # why a bench with a goal ended

    @property
    def answers(self) -> list[Answer]:
        return answers(self.results)


def run_study(
    request: StudyRequest,
    db: Path | None = None,
    *,
    fresh: bool = False,
    cool_down_s: float | None = None,
    watcher: Watcher | None = None,
    keep_distance: Callable[[DistanceJob, DraftDistance], None] | None = None,
    options: Asked | None = None,
    pull: Pull | None = None,
) -> StudyResult:
    """Run suites, each trial committed before the next; the same call goes on where an earlier one stopped.

    With `pull` the models that are here are measured first, and others come before the load that needs them; `options`
    are asked for besides what the request holds. Raises, before anything is written: what `prepare_study` raises,
    LockError, StoreError, InputError for what does not fit.
    """
    watcher = watcher or Watcher()
    path = db or study_path(request.profile.name)
    check_database(path)
    with machine_lock():
        plan = prepare_study(request, make=pull is None)
        if not plan.loads:
            prepare_study(request, make=True)  # which says why
        watcher.planned(plan)
        outcome, warnings = RunOutcome(run_id=0, n_ok=0, n_failed=0, n_skipped=0, n_left=0), list[QualityWarning]()
        fits = fit_here(plan.loads, cool_down_s=cool_down_s) if pull is None else None
        with Store.open(path) as store:
            stages = _stages(request, plan, pull)
            for plan, loads in stages:
                environment, loads = fits or fit_here(loads, cool_down_s=cool_down_s)
                part, asked = msgspec.structs.replace(plan, loads=loads), {**request.asked, **(options or {})}
                run = recorded(part, environment, suite_session(request, plan), asked)
                run = msgspec.structs.replace(run, n_slots=sum(1 for _ in plan.slots()), before=outcome, fresh=fresh)
                outcome, more = conduct(run, store, watcher)
                warnings += more
                if outcome.interrupted:
                    break
            if keep_distance is not None and not outcome.interrupted:
                for job, distance in study_distances(plan.cases().values(), plan.models(), request.overrides.engine):
                    store.add_distance(distance)
                    keep_distance(job, distance)
    answer = answer_of(results_of(path, outcome.run_id))
    return StudyResult(database=str(path), outcome=outcome, warnings=tuple(warnings), answer=answer)


def _stages(request: StudyRequest, plan: Plan, pull: Pull | None) -> Iterator[tuple[Plan, tuple[Job, ...]]]:
    """The plan as it is known, and what to measure next: with the models that are here, then with one more load's."""
    measured: set[tuple[str, ...]] = set()
    while True:
        ready = tuple(load for load in plan.loads if not load.missing and _names(load) not in measured)
        if ready:
            yield plan, ready
            measured.update(map(_names, ready))
        load = plan.next_to_bring()
        if load is None or pull is None:
            return
        for ref in load.missing:
            pull(ref.id)
        plan = prepare_study(request)  # a file tells more than the manifest: its hash, what works on it


def _names(load: Job) -> tuple[str, ...]:
    return tuple(ref.id for ref in load.refs)


def bench(
    request: BenchRequest, db: Path | None = None, *, fresh: bool = False, watcher: Watcher | None = None
) -> BenchResult:
    """Measure methods beside plain decoding, in blocks that hold every method, and keep the trials.

    A bench goes on with the blocks of every earlier one that asked the same question: target, text, output tokens and
    settings are the same. With `fresh` these count no more.

    Raises: what `plan_here` raises, LockError, StoreError; what the worker raises when an arm cannot run, before
    anything is measured; WorkerError when every trial failed.
    """
    path, watcher = db or study_path(BENCHES), watcher or Watcher()
    check_database(path)
    with machine_lock():
        environment, plan = plan_here(request)
        stopping, cases = Stopping.FIXED if request.goal is None else Stopping.SEQUENTIAL, plan.cases()
        decides = planned(SessionPlan(id=BENCH, stopping=stopping), plan)
        n_blocks = {} if request.goal else {request.target.ref.id: request.repeats}  # of each question
        decides = msgspec.structs.replace(decides, n_blocks=n_blocks)
        with Store.open(path) as store:
            before = sessions.of_cases(store, environment, decides, cases.values())
            earlier = [measured for session in before for measured in session.trials]
            if fresh:
                store.supersede(environment, {measured.trial.case_id for measured in earlier})
                earlier = []
            race = None
            if request.goal is not None:
                race = Race(request.goal, plan=decides, earlier=earlier)
            done = bench_into(plan, request, store, environment, watcher, decides, race or ALL, fresh=fresh)
            asked = sessions.of_cases(store, environment, decides, cases.values())
            return result_of(store, path, done, asked, models=request.files, race=race)


def result_of(
    store: Store,
    path: Path,
    done: Done,
    asked: Iterable[SessionTrials],
    *,
    models: tuple[LocalModel, ...] = (),
    race: Race | None = None,
) -> BenchResult:
    """What a run measured, and every arm of its questions. Raises: WorkerError when every trial failed."""
    outcome, warnings = done
    trials = tuple(store.trials(TrialFilter(run_id=outcome.run_id)))
    if outcome.n_failed and not outcome.n_ok:
        raise WorkerError(f"Every trial failed: {trials[0].trial.reason}")
    return BenchResult(
        database=str(path),
        outcome=outcome,
        warnings=warnings,
        trials=trials,
        models=models,
        results=tuple(arm for session in asked for arm in session.results()),
        stopped=None if race is None else race.stopped,
    )


def bench_into(
    plan: Plan,
    request: BenchRequest,
    store: Store,
    environment: Environment,
    watcher: Watcher,
    decides: SessionPlan,
    choice: Choice = ALL,
    start: StartBench = Bench,
    *,
    fresh: bool = False,
) -> Done:
    """Run a bench's blocks as further repeats of what the store holds; the caller holds `machine_lock`."""
    if not fresh and (first := next_repeat(store, environment, plan.cases())):
        (load,), (later,) = plan.loads, plan_bench(request, first=first).loads
        plan = msgspec.structs.replace(plan, loads=(msgspec.structs.replace(load, slots=later.slots),))
    run = msgspec.structs.replace(recorded(plan, environment, decides), fresh=fresh)
    return conduct(run, store, watcher, choice, start)


def plan_here(
    request: BenchRequest, footprints: Footprints | None = None, coming: Sequence[Job] = ()
) -> tuple[Environment, Plan]:
    """The machine at hand, and a bench as it fits it: an arm that cannot run ends it before anything is measured.

    For the others see `fit_here`. Raises: SuiteError, InputError for what the machine cannot hold, WorkerError.
    """
    plan = plan_bench(request)
    environment, loads = fit_here(plan.loads, strict=True, footprints=footprints, coming=coming)
    return environment, msgspec.structs.replace(plan, loads=loads)


def check_database(path: Path) -> None:
    """See before any work that an existing database can be used. Raises: StoreError."""
    if path.exists():
        Store.open(path, create=False).close()


def recorded(plan: Plan, environment: Environment, decides: SessionPlan, asked: Asked | None = None) -> Experiment:
    """A plan, whose models are here, as a run measures and records it."""
    facts = tuple(model_facts(Path(file.path), ref=file.ref) for file in plan.models().values())
    context_bytes = {arm: n_bytes for load in plan.loads for arm, n_bytes in load.context_bytes.items()}
    limit = next((load.limit_bytes for load in plan.loads), None)
    decides = msgspec.structs.replace(decides, context_bytes=context_bytes, limit_bytes=limit)
    record = plan_record(plan, asked or {}, decides)
    return Experiment(loads=plan.loads, environment=environment, facts=facts, record=record, seed=plan.seed)


def conduct(
    plan: Experiment,
    store: Store,
    watcher: Watcher | None,
    choice: Choice = ALL,
    start: StartBench = Bench,
) -> Done:
    """Run the plan into the store, by default in worker processes, then record what speaks against the run."""
    outcome = run_experiment(plan, start, store, watcher, choice)
    return outcome, conclude(store, outcome.run_id, plan.environment)


def conclude(store: Store, run_id: int, environment: Environment) -> tuple[QualityWarning, ...]:
    """Record what speaks against a run."""
    trials = [row.trial for row in store.trials(TrialFilter(run_id=run_id), rounds=False)]
    warnings = tuple(check_run(trials, environment))
    store.add_warnings(run_id, warnings)
    return warnings


def planned(session: SessionPlan, plan: Plan) -> SessionPlan:
    """The plan of a session that decides of these arms."""
    cases = plan.cases().values()
    n_blocks = Counter(block.slots[0].case.target.id for load in plan.loads for block in load.blocks)
    n_threads = threads_of(next(iter(cases)).engine)
    return msgspec.structs.replace(session, n_threads=n_threads, n_blocks=dict(n_blocks)).count(cases)


def suite_session(request: StudyRequest, plan: Plan) -> SessionPlan:
    """The plan of a run of suites: the same suites, asked for in the same way, go on where they stopped."""
    sampling = msgspec.structs.replace(request.overrides.sampling, seed=0)
    overrides = msgspec.structs.replace(request.overrides, repeats=None, limit=None, seed=0, sampling=sampling)
    identity = (plan.suites, plan.profile, request.models, msgspec.to_builtins(overrides))
    name = hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()[:16]
    return planned(SessionPlan(id=f"suites {name}", pool="workload"), plan)


def plan_record(plan: Plan, asked: Asked, decides: SessionPlan) -> dict[str, Any]:
    """What a run keeps of its plan: names, counts and what it was asked; the cases stand in their own table."""
    return {
        "profile": plan.profile,
        "suites": plan.suites,
        "study_trials": plan.study_trials,
        "paired_baselines": plan.paired_baselines,
        "asked": dict(asked),
        **sessions.as_stored(decides),
    }

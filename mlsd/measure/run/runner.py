"""Running plans into a study database: one job a load, resume, one run at a time, and nothing lost.

The runner is the only writer of the store. It keeps no state of its own: what is done is what the store says, so a
killed run goes on where its last committed trial was.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, Protocol, cast

import filelock
import msgspec

from mlsd.errors import LockError, MlsdError
from mlsd.folders import cache_dir
from mlsd.hardware.awake import awake
from mlsd.measure.contexts import check_contexts
from mlsd.measure.messages import Done, Event, Felt, failed_trial
from mlsd.measure.process import DEFAULT_PATIENCE_S, run_job
from mlsd.measure.run.memory import LoadMemory
from mlsd.measure.store.rows import TrialFilter, TrialKey, environment_key
from mlsd.measure.store.store import Store
from mlsd.planning.job import Job, Reference, Slot, prompt_key
from mlsd.planning.prepare import Prepared
from mlsd.records import Environment, ModelFacts, Record, Trial


class Drive(Protocol):
    """What measures the slots of a job and says so, as `run_job` does in worker processes."""

    def __call__(self, job: Job, *, patience_s: float, turns: Iterable[Sequence[int]]) -> Iterator[Event]:
        """Events until every slot of every turn was visited. Raises: MlsdError for a job that cannot run."""


class Choose(Protocol):
    """What of a load to measure next: asked at first, and again when all that was chosen is committed."""

    def __call__(self, left: Sequence[Slot], measured: Sequence[Trial]) -> Sequence[Slot]:
        """Some of the slots that are left, in the order in which they run; none ends the load."""


def all_left(left: Sequence[Slot], measured: Sequence[Trial]) -> Sequence[Slot]:
    """Everything that is planned."""
    return left


class RunOutcome(Record, frozen=True, kw_only=True):
    """What a run did."""

    run_id: int
    n_ok: int
    n_failed: int
    n_skipped: int  # done by an earlier run
    n_left: int  # not run: interrupted, or beyond the limit
    interrupted: bool = False


class RunSettings(Record, frozen=True, kw_only=True):
    """How a plan is run; nothing here changes a number."""

    fresh: bool = False  # measure again what is done already
    keep_failed: bool = False  # leave earlier failures alone instead of trying them again
    limit: int | None = None  # the most trials to run now
    cool_down_s: float | None = None  # of rest between blocks; None: until it is cool where there is no fan, else none
    patience_s: float = DEFAULT_PATIENCE_S
    seed: int = 0  # of the order, recorded with the run


class Watcher:
    """What a runner tells while it works; the default says nothing."""

    def planned(self, prepared: Prepared) -> None:
        """What will be measured is settled, and nothing has run."""

    def begin(self, n_total: int, n_skipped: int) -> None:
        """The run starts with so many slots, of which some are done already."""

    def job(self, job: Job) -> None:
        """A load begins."""

    def event(self, job: Job, event: Event) -> None:
        """A worker said something."""

    def trial(self, slot: Slot, trial: Trial) -> None:
        """A trial was committed."""

    def paused(self) -> AbstractContextManager[object]:
        """While others tell something."""
        return nullcontext()


def plan_jobs(
    prepared: Prepared, memory: Sequence[LoadMemory] = (), *, cool_down_s: float | None = 0.0, strict: bool = False
) -> tuple[Job, ...]:
    """The loads of the plan as they are to run. `memory` says which are tight."""
    loads = prepared.plan.loads
    tight = [load.verdict == "tight" for load in memory] or [False] * len(loads)
    return tuple(
        msgspec.structs.replace(load, cool_down_s=cool_down_s, strict=strict, one_arm=one_arm)
        for load, one_arm in zip(loads, tight, strict=True)
    )


@contextmanager
def machine_lock() -> Iterator[None]:
    """One measurement at a time on a machine, which stays awake meanwhile: two would measure each other.

    Raises: LockError when another run holds the lock, or when it cannot be made.
    """
    path = cache_dir() / "run.lock"
    lock = filelock.FileLock(path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        raise LockError(
            f"Another run of mlsd holds this machine ({path}).", hint="Wait for it; two runs would disturb each other."
        ) from None
    except OSError as error:
        raise LockError(
            f"The lock {error.filename or path} cannot be written: {error.strerror or error}.",
            hint="Name a writable folder with MLSD_CACHE.",
        ) from error
    try:
        with awake():
            yield
    finally:
        lock.release()


@contextmanager
def recorded_run(store: Store, environment: Environment, plan: Mapping[str, Any], seed: int = 0) -> Iterator[int]:
    """A run of the store around what is measured inside, by its id; whatever ends it early leaves it `interrupted`."""
    run_id = store.begin_run(environment, plan, seed)
    try:
        yield run_id
    except BaseException:
        store.end_run(run_id, "interrupted")
        raise
    store.end_run(run_id)


def run_jobs(
    jobs: Sequence[Job],
    store: Store,
    environment: Environment,
    models: Iterable[ModelFacts],
    plan: dict[str, Any],
    settings: RunSettings,
    watcher: Watcher | None = None,
    drive: Drive = run_job,
    choose: Choose = all_left,
) -> RunOutcome:
    """Run what is not done yet; every trial is committed before the next one starts. `drive` does the measuring.

    `choose` decides block by block, say, what of a load goes on, while its models and contexts stay open.

    A job that cannot run leaves failed trials with its reason, and the next job runs; a strict one ends the run with
    what the worker raised, if nothing of it was measured. Ctrl-C ends the run after the last committed trial and is
    reported in the outcome.
    The caller holds `machine_lock`. Raises: StoreError, InputError for a context that cannot be.
    """
    watcher = watcher or Watcher()
    for job in jobs:
        check_contexts(job)
    cases = {slot.case_id: slot.case for job in jobs for slot in job.slots}
    finished = finished_slots(store, environment, cases, settings)
    tally = Tally(sum(len(job.slots) for job in jobs), environment_key(environment))
    try:
        with recorded_run(store, environment, plan, settings.seed) as tally.run_id:
            store.add_models(models)
            store.add_cases(tally.run_id, cases)
            todo = [(job, tuple(slot for slot in job.slots if slot_key(slot) not in finished)) for job in jobs]
            tally.n_skipped = tally.n_total - sum(len(slots) for _, slots in todo)
            watcher.begin(tally.n_total, tally.n_skipped)
            for job, slots in todo:
                if settings.limit is not None:
                    slots = slots[: max(0, settings.limit - tally.n_run)]
                if slots:
                    run_slots(job, slots, store, tally, settings, watcher, drive, choose)
    except KeyboardInterrupt:
        return tally.outcome(interrupted=True)
    return tally.outcome()


def finished_slots(
    store: Store, environment: Environment, case_ids: Iterable[str], settings: RunSettings
) -> set[TrialKey]:
    """What needs not be measured again on this machine and build; what is, counts no more."""
    if settings.fresh:
        store.retire(environment, case_ids)
    elif not settings.keep_failed:
        store.retire(environment, case_ids, disturbed=True)
    done = store.done(environment)
    return set(done.ok) | set(done.failed) if settings.keep_failed else set(done.ok)


class Tally:
    """What a run has done so far."""

    def __init__(self, n_total: int, environment: str) -> None:
        self.run_id, self.n_total, self.environment = 0, n_total, environment
        self.n_ok = self.n_failed = self.n_skipped = 0

    @property
    def n_run(self) -> int:
        """Trials that were committed."""
        return self.n_ok + self.n_failed

    def outcome(self, *, interrupted: bool = False) -> RunOutcome:
        """The same as a record."""
        return RunOutcome(
            run_id=self.run_id,
            n_ok=self.n_ok,
            n_failed=self.n_failed,
            n_skipped=self.n_skipped,
            n_left=self.n_total - self.n_skipped - self.n_run,
            interrupted=interrupted,
        )


def run_slots(
    job: Job,
    slots: tuple[Slot, ...],
    store: Store,
    tally: Tally,
    settings: RunSettings,
    watcher: Watcher,
    drive: Drive = run_job,
    choose: Choose = all_left,
) -> None:
    """Run some slots of a job in a worker of their own, each trial committed before the next one starts."""
    rest = msgspec.structs.replace(job, slots=slots, references=known_references(job, store, tally.environment))
    watcher.job(rest)
    measured: list[Trial] = []
    unsure: list[int] = []  # places in `measured` since the last anchors
    turn: list[int] = []  # places that were chosen and are not committed
    place = {slot_key(slot): index for index, slot in enumerate(slots)}

    def turns() -> Iterator[Sequence[int]]:
        left = dict(enumerate(slots))
        while left and (chosen := choose(tuple(left.values()), tuple(measured))):
            turn[:] = [place[slot_key(slot)] for slot in chosen]
            for index in turn:
                del left[index]
            yield tuple(turn)

    def commit(index: int, trial: Trial) -> None:
        trial = store.admit(tally.run_id, trial)
        unsure.append(len(measured))
        measured.append(trial)
        turn.remove(index)
        tally.n_ok += trial.status == "ok"
        tally.n_failed += trial.status == "failed"
        watcher.trial(slots[index], trial)

    def judge(event: Felt) -> None:
        if event.disturbed is not None:
            chosen = [at for at in unsure if measured[at].valid]
            keys = {trial_key(measured[at]) for at in chosen}
            rows = store.trials(TrialFilter(run_id=tally.run_id), rounds=False)
            store.mark_disturbed({row.id: event.disturbed for row in rows if trial_key(row.trial) in keys})
            for at in chosen:
                measured[at] = msgspec.structs.replace(
                    measured[at], valid=False, disturbed=True, invalid_reason=event.disturbed
                )
        unsure.clear()

    try:
        with closing(cast("Generator[Event]", drive(rest, patience_s=settings.patience_s, turns=turns()))) as events:
            for event in events:
                watcher.event(rest, event)
                if isinstance(event, Felt):
                    judge(event)
                if isinstance(event, Done):
                    commit(event.index, event.trial)
    except MlsdError as error:
        if job.strict and not measured:
            raise
        for index in turn.copy():
            commit(index, failed_trial(slots[index], str(error)))


def slot_key(slot: Slot) -> TrialKey:
    """What makes a slot the same measurement in every run of a plan."""
    return TrialKey(slot.case_id, slot.block, slot.repeat)


def trial_key(trial: Trial) -> TrialKey:
    """The slot that a trial filled."""
    return TrialKey(trial.case_id, trial.block, trial.repeat)


def known_references(job: Job, store: Store, environment: str) -> tuple[Reference, ...]:
    """Plain greedy outputs that this machine and build gave for the prompts of a job before, to judge the rest by."""
    found: dict[tuple[str, int], Reference] = {}
    for case_id, case in {slot.case_id: slot.case for slot in job.slots if slot.case.arm == "ar"}.items():
        key = (prompt_key(case.prompt), case.n_predict)
        if key in found or not case.sampling.greedy:
            continue
        chosen = TrialFilter(case_id=case_id, status="ok")
        earlier = (t.trial for t in store.trials(chosen, rounds=False) if t.environment_key == environment)
        first = next(earlier, None)
        if first is not None:
            found[key] = Reference(prompt=key[0], n_predict=key[1], tokens=first.tokens)
    return tuple(found.values())


def next_repeat(store: Store, environment: Environment, case_ids: Collection[str]) -> int:
    """The number after the last repeat that this machine and build ran of any of these cases."""
    done = store.done(environment)
    return 1 + max((key.repeat for key in (*done.ok, *done.failed) if key.case_id in case_ids), default=-1)

"""Running plans into a study database: resume, one run at a time, and nothing lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, cast

import filelock
import msgspec

from mlsd.errors import LockError, MlsdError
from mlsd.folders import cache_dir
from mlsd.hardware.awake import awake
from mlsd.measure.contexts import check_contexts
from mlsd.measure.messages import Done, Event, HeatReading, failed_trial, hot_trial
from mlsd.measure.store.rows import TrialFilter, TrialKey, environment_key
from mlsd.measure.store.store import Store
from mlsd.names import clean
from mlsd.planning.job import Job, Reference, Slot, prompt_key
from mlsd.planning.plan import Plan
from mlsd.records import Environment, ModelFacts, Record, Trial

HOT_TRIES = 2  # of a case; on a machine that each block heats no other trial ever comes, so further ones are kept


class Drive(Protocol):
    """What measures the slots of a job and says so, as `run_job` does in worker processes."""

    def __call__(self, job: Job, *, turns: Iterable[Sequence[int]]) -> Iterator[Event]:
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
    n_left: int  # not run: interrupted, or not chosen
    interrupted: bool = False


class RunSettings(Record, frozen=True, kw_only=True):
    """How a plan is run; nothing here changes a number."""

    fresh: bool = False  # measure again what is done already
    keep_failed: bool = False  # leave earlier failures alone instead of trying them again
    cool_down_s: float | None = None  # of rest between blocks; None: until it is cool where there is no fan, else none
    seed: int = 0  # of the order, recorded with the run


class Watcher:
    """What a runner tells while it works; the default says nothing."""

    def tell(self, line: str) -> None:
        """What a person may want to know of builds, of a search, or of a repeat that was stored."""

    def planned(self, plan: Plan) -> None:
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


class RunPlan(Record, frozen=True, kw_only=True):
    """What a run measures, on what, and what it records of itself."""

    loads: tuple[Job, ...]
    environment: Environment
    facts: tuple[ModelFacts, ...] = ()
    record: Mapping[str, Any] = msgspec.field(default_factory=dict)  # names and counts; the cases have their own table


@contextmanager
def machine_lock() -> Iterator[None]:
    """One measurement at a time on a machine, which stays awake meanwhile. Raises: LockError."""
    path = cache_dir() / "run.lock"
    lock, holder = filelock.FileLock(path, timeout=0), path.with_suffix(".holder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        holder.write_text(_this_process(), encoding="utf-8")
    except filelock.Timeout:
        try:
            who = clean(holder.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            who = "a process that does not say which"
        raise LockError(
            f"Another run of mlsd holds this machine: {who} ({path}).",
            hint="Wait for it, or end it; two runs would disturb each other.",
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
        holder.unlink(missing_ok=True)
        lock.release()


def _this_process() -> str:
    command = " ".join([Path(sys.argv[0]).name.replace("__main__.py", "mlsd"), *sys.argv[1:]])[:120]
    return f"process {os.getpid()}, `{command}`, since {datetime.now():%Y-%m-%d %H:%M:%S}"


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


def run_plan(
    plan: RunPlan,
    drive: Drive,
    store: Store,
    settings: RunSettings | None = None,
    watcher: Watcher | None = None,
    choose: Choose = all_left,
) -> RunOutcome:
    """Run what is not done yet; every trial is committed before the next one starts. The caller holds `machine_lock`.

    A load that cannot run leaves failed trials with its reason; a strict one ends the run if nothing of it was
    measured. Ctrl-C ends the run after the last committed trial. Raises: StoreError, InputError for a context that
    cannot be.
    """
    settings, watcher = settings or RunSettings(), watcher or Watcher()
    for load in plan.loads:
        check_contexts(load)
    going: RunInProgress | None = None
    try:
        with begun(plan, store, settings, watcher) as going:
            watcher.begin(going.n_total, going.n_skipped)
            for load, slots in going.todo:
                if slots:
                    going.measure(load, slots, drive, choose)
    except KeyboardInterrupt:
        if going is None:
            raise
        return going.outcome(interrupted=True)
    return going.outcome()


@contextmanager
def begun(plan: RunPlan, store: Store, settings: RunSettings, watcher: Watcher) -> Iterator[RunInProgress]:
    """A run of the store, ended with the block."""
    cases = {slot.case_id: slot.case for load in plan.loads for slot in load.slots}
    done = _finished_slots(store, plan.environment, cases, settings)
    with recorded_run(store, plan.environment, plan.record, settings.seed) as run_id:
        store.add_models(plan.facts)
        store.add_cases(run_id, cases)
        yield RunInProgress(run_id, plan, store, done, watcher)


def _finished_slots(
    store: Store, environment: Environment, case_ids: Iterable[str], settings: RunSettings
) -> set[TrialKey]:
    """What needs not be measured again on this machine and build; what is, counts no more."""
    if settings.fresh:
        store.retire(environment, case_ids)
    elif not settings.keep_failed:
        store.retire(environment, case_ids, disturbed=True)
    done = store.done(environment)
    return set(done.ok) | set(done.failed) if settings.keep_failed else set(done.ok)


class RunInProgress:
    """A run in progress: what is left of it, and the one way in which its trials are committed."""

    def __init__(self, run_id: int, plan: RunPlan, store: Store, done: set[TrialKey], watcher: Watcher) -> None:
        self.run_id, self.environment, self.done = run_id, plan.environment, done
        self._store, self._watcher = store, watcher
        self.todo = [(load, tuple(slot for slot in load.slots if slot_key(slot) not in done)) for load in plan.loads]
        self.n_total = sum(len(load.slots) for load in plan.loads)
        self.n_skipped = self.n_total - sum(len(slots) for _, slots in self.todo)
        self.n_ok = self.n_failed = 0
        self._n_hot = store.disturbed(plan.environment)

    @property
    def n_run(self) -> int:
        return self.n_ok + self.n_failed

    def outcome(self, *, interrupted: bool = False) -> RunOutcome:
        """What it has done so far."""
        return RunOutcome(
            run_id=self.run_id,
            n_ok=self.n_ok,
            n_failed=self.n_failed,
            n_skipped=self.n_skipped,
            n_left=self.n_total - self.n_skipped - self.n_run,
            interrupted=interrupted,
        )

    def commit(self, slot: Slot, trial: Trial) -> Trial:
        """Store a trial of the slot; what the store takes of it."""
        if trial.disturbed:  # by a machine of a lab, which felt its heat itself
            self._n_hot[trial.case_id] += 1
            if self._n_hot[trial.case_id] > HOT_TRIES:
                trial = hot_trial(trial, "", kept=True)
        trial = self._store.admit(self.run_id, trial)
        self.done.add(slot_key(slot))
        self.n_ok += trial.status == "ok"
        self.n_failed += trial.status == "failed"
        self._watcher.trial(slot, trial)
        return trial

    def ready(self, load: Job, slots: tuple[Slot, ...]) -> Job:
        """A load with some of its slots, and with the plain greedy outputs that this machine and build gave before."""
        return msgspec.structs.replace(load, slots=slots, references=self._references(load))

    def _references(self, load: Job) -> tuple[Reference, ...]:
        found: dict[tuple[str, int], Reference] = {}
        here = environment_key(self.environment)
        for case_id, case in load.cases.items():
            key = (prompt_key(case.prompt), case.n_predict)
            if case.arm != "ar" or key in found or not case.sampling.greedy:
                continue
            chosen = TrialFilter(case_id=case_id, status="ok")
            earlier = (t.trial for t in self._store.trials(chosen, rounds=False) if t.environment_key == here)
            if (first := next(earlier, None)) is not None:
                found[key] = Reference(prompt=key[0], n_predict=key[1], tokens=first.tokens)
        return tuple(found.values())

    def measure(self, load: Job, slots: tuple[Slot, ...], drive: Drive, choose: Choose = all_left) -> None:
        """Run some slots of a load in a worker of their own, each trial committed before the next one starts."""
        job = self.ready(load, slots)
        self._watcher.job(job)
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
            unsure.append(len(measured))
            measured.append(self.commit(slots[index], trial))
            turn.remove(index)

        def judge(event: HeatReading) -> HeatReading:
            chosen = {slot_key(measured[at]): at for at in unsure if measured[at].valid}
            if event.disturbed is not None and chosen:
                rows = self._store.trials(TrialFilter(run_id=self.run_id), rounds=False)
                ids = {row.id for row in rows if slot_key(row.trial) in chosen}
                kept = all(self._n_hot[key.case_id] >= HOT_TRIES for key in chosen)
                self._n_hot.update(key.case_id for key in chosen)
                self._store.mark_disturbed(dict.fromkeys(ids, event.disturbed), kept=kept)
                for at in chosen.values():
                    measured[at] = hot_trial(measured[at], event.disturbed, kept=kept)
                event = msgspec.structs.replace(event, kept=kept)
            unsure.clear()
            return event

        try:
            with closing(cast("Generator[Event]", drive(job, turns=turns()))) as events:
                for event in events:
                    if isinstance(event, HeatReading):
                        event = judge(event)
                    self._watcher.event(job, event)
                    if isinstance(event, Done):
                        commit(event.index, event.trial)
        except MlsdError as error:
            if load.strict and not measured:
                raise
            for index in turn.copy():
                commit(index, failed_trial(slots[index], str(error)))


def slot_key(one: Slot | Trial) -> TrialKey:
    """What makes a slot, and the trial that filled it, the same measurement in every run of a plan."""
    return TrialKey(one.case_id, one.block, one.repeat)


def next_repeat(store: Store, environment: Environment, case_ids: Collection[str]) -> int:
    """The number after the last repeat that this machine and build ran of any of these cases."""
    done = store.done(environment)
    return 1 + max((key.repeat for key in (*done.ok, *done.failed) if key.case_id in case_ids), default=-1)

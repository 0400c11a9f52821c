"""Running plans into a study database, block by block: resume, one run at a time, and nothing lost.

A block that was disturbed (`disturbance`) is measured again, whole, before the next one.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import filelock
import msgspec

from mlsd.errors import DatabaseLockedError, LockError, MlsdError
from mlsd.folders import cache_dir
from mlsd.hardware.awake import awake
from mlsd.measure.bench import BlockBench, Report
from mlsd.measure.messages import Event, failed_trial
from mlsd.measure.parent.disturbance import BlockJudge
from mlsd.measure.process import check_context
from mlsd.names import clean
from mlsd.planning.job import Block, BlockKey, Job, Reference, Slot
from mlsd.planning.plan import Plan
from mlsd.planning.time_estimate import load_preparation_s, preparation_line
from mlsd.records import Environment, ModelFacts, Record, Status, Trial
from mlsd.store.rows import environment_key
from mlsd.store.store import Store
from mlsd.trials.results import Measured
from mlsd.trials.stages import StageTime, summed

_AGAIN_S = 5.0  # between tries to store what was measured


# What measures the blocks of a job, as `Bench` does in worker processes; the second hears what it is at.
StartBench = Callable[[Job, Report], BlockBench]


class Choice:
    """Which blocks of a load come next: all that are planned, unless a subclass knows better."""

    def next(self, left: Sequence[Block], measured: Sequence[Measured]) -> Sequence[Block]:
        """Some of the blocks that are left, or of their arms, in the order in which they run; none: see `more`.

        Asked at first, and again when all that was chosen is stored; `measured` is what counts of this load so far.
        """
        return left

    def more(self) -> Job | None:
        """Further blocks of the same models, for the same process, once none is chosen; None ends the load."""
        return None

    def account(self, stages: Iterable[StageTime]) -> None:
        """Take in where the time of a block went."""

    def is_over(self) -> bool:
        """Whether the time is used up: asked while the machine rests before a chosen block."""
        return False


ALL = Choice()


class RunOutcome(Record, frozen=True, kw_only=True):
    """What a run did."""

    run_id: int
    n_ok: int  # trials
    n_failed: int
    n_skipped: int  # done by an earlier run
    n_left: int  # not run: interrupted, or not chosen
    interrupted: bool = False
    stages: tuple[StageTime, ...] = ()  # where the time of its workers went


class Watcher:
    """What is told while blocks are measured; the default says nothing."""

    def tell(self, line: str) -> None:
        """What a person may want to know of builds, of a search, or of a repeat that was stored."""

    def ready(self, line: str) -> None:
        """How long getting ready will take, before it begins."""
        self.tell(line)

    def planned(self, plan: Plan) -> None:
        """What will be measured is settled, and nothing has run."""

    def begin(self, n_total: int, n_skipped: int) -> None:
        """The run starts with so many slots, of which some are done already."""

    def turn(self, of: str) -> None:
        """What follows is of this side of a comparison."""

    def job(self, job: Job) -> None:
        """A load begins."""

    def event(self, event: Event) -> None:
        """A worker said something."""

    def rest(self, why: str) -> None:
        """Nothing is measured meanwhile; said every half minute."""

    def trial(self, slot: Slot, trial: Trial) -> None:
        """A trial was committed."""

    def paused(self) -> AbstractContextManager[object]:
        """While others tell something."""
        return nullcontext()


class Experiment(Record, frozen=True, kw_only=True):
    """What a run measures, on what, and what it records of itself."""

    loads: tuple[Job, ...]
    environment: Environment
    facts: tuple[ModelFacts, ...] = ()
    record: Mapping[str, Any] = msgspec.field(default_factory=dict)  # names and counts; the cases have their own table
    n_slots: int | None = None  # of the whole plan, where this is a part of it
    before: RunOutcome | None = None  # of the parts before
    seed: int = 0  # of the order, recorded with the run
    fresh: bool = False  # measure again what is done already
    keep_failed: bool = False  # leave earlier failures alone instead of trying them again


@contextmanager
def machine_lock() -> Iterator[None]:
    """One measurement at a time on a machine, which stays awake meanwhile. Raises: LockError."""
    path = cache_dir() / "run.lock"
    lock, holder = filelock.FileLock(path, timeout=0), path.with_suffix(".holder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        command = " ".join([Path(sys.argv[0]).name.replace("__main__.py", "mlsd"), *sys.argv[1:]])[:120]
        holder.write_text(f"process {os.getpid()}, `{command}`, since {datetime.now():%Y-%m-%d %H:%M:%S}", "utf-8")
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


def run_experiment(
    plan: Experiment,
    start: StartBench,
    store: Store,
    watcher: Watcher | None = None,
    choice: Choice = ALL,
) -> RunOutcome:
    """Run what is not done yet; every block is stored before the next one starts. The caller holds `machine_lock`.

    A load that cannot run leaves failed trials with its reason; a strict one ends the run if nothing of it was
    measured. Ctrl-C ends the run after the last stored block. Raises: StoreError, InputError for a context that
    cannot be.
    """
    watcher = watcher or Watcher()
    for load in plan.loads:
        check_context({"job": load})
    going: OpenRun | None = None
    try:
        with begun(plan, store, watcher) as going:
            watcher.begin(going.n_total, going.n_total - going.outcome().n_left)
            going.announce()
            for load, blocks in going.todo:
                if blocks:
                    going.measure(load, blocks, start, choice)
    except KeyboardInterrupt:
        if going is None:
            raise
        return going.outcome(interrupted=True)
    return going.outcome()


@contextmanager
def begun(plan: Experiment, store: Store, watcher: Watcher) -> Iterator[OpenRun]:
    """A run of the store, ended with the block."""
    cases = {slot.case_id: slot.case for load in plan.loads for slot in load.slots}
    if plan.fresh:
        store.supersede(plan.environment, cases)
    with recorded_run(store, plan.environment, plan.record, plan.seed) as run_id:
        store.add_models(plan.facts)
        store.add_cases(run_id, cases)
        yield OpenRun(run_id, plan, store, watcher)


class OpenRun:
    """A run in progress: what is left of it, and the one way in which its blocks are stored."""

    def __init__(self, run_id: int, plan: Experiment, store: Store, watcher: Watcher) -> None:
        self.run_id, self.environment = run_id, plan.environment
        self._store, self._watcher = store, watcher
        done = {
            key: statuses for key, statuses in store.blocks(plan.environment).items()
            if plan.keep_failed or all(status.is_final for status in statuses.values())
        }  # fmt: skip
        self.todo = [
            (load, tuple(block for block in load.blocks if not block.case_ids <= done.get(block.key, {}).keys()))
            for load in plan.loads
        ]
        n_own = sum(len(load.slots) for load in plan.loads)
        self.n_total, self._before = plan.n_slots or n_own, plan.before
        self.n_skipped = n_own - sum(len(block.slots) for _, blocks in self.todo for block in blocks)
        self.done: dict[BlockKey, tuple[Trial, ...]] = {}  # by this run
        self._stages: tuple[StageTime, ...] = ()
        on_device = plan.environment.backend != "CPU"
        self._judge = BlockJudge(on_device=on_device, tries=store.tries(plan.environment))
        here, cases = environment_key(plan.environment), {id_ for load in plan.loads for id_ in load.cases}
        rows = [row for row in store.trials(rounds=False) if row.environment_key == here and row.trial.case_id in cases]
        # What this machine and build measured of these cases: read once, and kept up to date.
        self._earlier = [row.trial for row in rows if row.trial.tokens]
        self._earlier_runs = {row.run_id for row in rows}

    @property
    def n_run(self) -> int:
        return sum(map(len, self.done.values()))

    def outcome(self, *, interrupted: bool = False) -> RunOutcome:
        """What it has done so far, and the parts before."""
        n_failed = sum(trial.status is Status.FAILED for trials in self.done.values() for trial in trials)
        counts = {"n_ok": self.n_run - n_failed, "n_failed": n_failed, "n_skipped": self.n_skipped}
        if self._before is not None:
            counts = {name: n + getattr(self._before, name) for name, n in counts.items()}
        n_left = self.n_total - sum(counts.values())
        stages = summed((*(() if self._before is None else self._before.stages), *self._stages))
        return RunOutcome(run_id=self.run_id, **counts, n_left=n_left, interrupted=interrupted, stages=stages)

    def announce(self) -> None:
        """Say how long getting ready for all loads that are left will take; a bench of servers says that itself."""
        loads = [load for load, blocks in self.todo if blocks and load.slots[0].case.source == "engine"]
        if not loads:
            return
        runs = self._store.runs() if len(self.todo) == 1 else ()
        earlier = [run.stages for run in runs if run.id in self._earlier_runs and run.stages]
        spans_s = [load_preparation_s(load, earlier) for load in loads]
        known_s = [span_s for span_s in spans_s if span_s is not None]
        seconds = sum(known_s) if len(known_s) == len(spans_s) else None
        doing = "Loading, and checking how arms roll back"
        self._watcher.ready(preparation_line(doing if len(loads) == 1 else f"{doing}, of {len(loads)} loads", seconds))

    def account(self, stages: Iterable[StageTime]) -> None:
        """Add to the time that the run's workers took, and store it."""
        self._stages = summed((*self._stages, *stages))
        self._store.set_in_plan(self.run_id, "stages", self._stages)

    def add(self, block: Block, trials: Sequence[Trial], again: str = "") -> list[Measured]:
        """Store a measurement of the block; it is the last one, unless the block is to be measured `again`."""
        while True:
            try:
                stored = self._store.add(self.run_id, trials)
                break
            except DatabaseLockedError as error:  # what was measured is kept until it can be stored
                self._watcher.tell(f"{error.message} The block that was measured is kept; trying again.")
                time.sleep(_AGAIN_S)
        self._earlier += (row.trial for row in stored if row.trial.tokens)
        if again:
            self.done.pop(block.key, None)
        else:
            self.done[block.key] = tuple(row.trial for row in stored)
            for slot, row in zip(block.slots, stored, strict=True):
                self._watcher.trial(slot, row.trial)
        return stored

    def ready(self, load: Job, blocks: Iterable[Block]) -> Job:
        """A load with some of its blocks, and with what this machine and build gave before: plain outputs, prefills."""
        references: dict[tuple[str, int], Reference] = {}
        timed, compared, cases = dict[str, None](), dict[str, None](), load.cases
        for trial in (trial for trial in self._earlier if trial.case_id in cases):
            case = cases[trial.case_id]
            if trial.prefill_ns is not None and trial.valid:
                timed[trial.case_id] = None
            if trial.valid and trial.losslessness is not None and trial.losslessness.live_distance is not None:
                compared[trial.case_id] = None
            if trial.valid and case.arm == "ar" and case.sampling.greedy and trial.prompt_sha256 is not None:
                reference = Reference(prompt_sha256=trial.prompt_sha256, n_predict=case.n_predict, tokens=trial.tokens)
                references.setdefault((trial.prompt_sha256, case.n_predict), reference)
        slots = tuple(slot for block in blocks for slot in block.slots)
        return msgspec.structs.replace(
            load,
            slots=slots,
            references=tuple(references.values()),
            timed_prefills=tuple(timed),
            compared_memories=tuple(compared),
        )

    def measure(self, load: Job, blocks: Sequence[Block], start: StartBench, choice: Choice = ALL) -> None:
        """Measure some blocks of a load on a bench, each stored before the next one starts."""
        job, waiting = self.ready(load, blocks), deque[Block]()
        self._watcher.job(job)
        self._judge.begin(job)
        left = {block.key: block for block in blocks}
        measured: dict[BlockKey, list[Measured]] = {}
        try:
            with start(job, self._watcher.event) as bench:
                while True:
                    if not waiting:
                        waiting.extend(choice.next(tuple(left.values()), list(chain.from_iterable(measured.values()))))
                        left = {
                            key: block for key, block in left.items() if key not in {chosen.key for chosen in waiting}
                        }
                    if not waiting:
                        if (further := choice.more()) is None:
                            break
                        left = self._go_on(bench, further)
                        continue
                    if not self._judge.rest(bench, self._watcher.rest, choice.is_over):
                        break
                    answer = bench.measure(waiting[0])
                    for block, trials, again in self._judge.judge(bench, waiting.popleft(), answer):
                        measured[block.key] = self.add(block, trials, again)
                        if again:
                            waiting.appendleft(block)
                            self._watcher.tell(f"A block is not used and measured again: {again}.")
                    self.account(answer.stages)
                    choice.account(answer.stages)
        except MlsdError as error:
            if load.strict and not measured:
                raise
            for block in waiting:
                self.add(block, [failed_trial(slot, str(error)) for slot in block.slots])

    def _go_on(self, bench: BlockBench, further: Job) -> dict[BlockKey, Block]:
        """Take further blocks into this run."""
        self._store.add_cases(self.run_id, further.cases)
        if further.context_bytes:
            self._store.set_in_plan(self.run_id, "decides.context_bytes", further.context_bytes)
        self.n_total += len(further.slots)
        self._judge.begin(further)
        bench.go_on(further)
        return {block.key: block for block in further.blocks}


def next_repeat(store: Store, environment: Environment, case_ids: Collection[str]) -> int:
    """The number after the last repeat that this machine and build ran of any of these cases."""
    stored = store.blocks(environment)
    return 1 + max((key.repeat for key, statuses in stored.items() if statuses.keys() & case_ids), default=-1)

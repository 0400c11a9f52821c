"""Running plans into a study database, block by block: resume, one run at a time, and nothing lost.

A block that heat, sleep or other programs disturbed is measured again, whole, before the next one. On a machine that
each block heats no other measurement ever comes: after `MOST_TRIES` what was hot is stored and marked, and the times of
what was starved are not used. Only a trial that is valid by itself can become hot or disturbed, so that no false output
ever counts.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import msgspec

from mlsd.errors import DatabaseLockedError, LockError, MlsdError
from mlsd.folders import cache_dir
from mlsd.hardware.awake import awake
from mlsd.measure.messages import BlockMeasured, Event, Resting, failed_trial
from mlsd.measure.process import check_context
from mlsd.names import clean
from mlsd.planning.job import Block, BlockKey, Job, Reference, Slot
from mlsd.planning.plan import Plan
from mlsd.records import Environment, ModelFacts, Record, Status, Trial
from mlsd.store.rows import TrialFilter, environment_key
from mlsd.store.store import Store
from mlsd.trials.results import Measured

_AGAIN_S = 5.0  # between tries to store what was measured
MOST_TRIES = 2  # measurements of a block that were disturbed, those of earlier runs included, before the last one
DISTURBED_SHARE, DISTURBED_NS = 0.25, 10**9  # of a trial; shorter waits are scatter, and repeats show it


# What measures a job, turn by turn, and says so: (job, turns=...), as `measure_job` does in worker processes.
Drive = Callable[..., Generator[Event]]


class Choice:
    """Which blocks of a load come next: all that are planned, unless a subclass knows better."""

    def next(self, left: Sequence[Block], measured: Sequence[Measured]) -> Sequence[Block]:
        """Some of the blocks that are left, or of their arms, in the order in which they run; none ends the load.

        Asked at first, and again when all that was chosen is stored; `measured` is what counts of this load so far.
        """
        return left

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


class RunSettings(Record, frozen=True, kw_only=True):
    """How a plan is run; nothing here changes a number."""

    fresh: bool = False  # measure again what is done already
    keep_failed: bool = False  # leave earlier failures alone instead of trying them again
    cool_down_s: float | None = None  # of rest between blocks; None: until it is cool where there is no fan, else none
    seed: int = 0  # of the order, recorded with the run


class Watcher:
    """What is told while blocks are measured; the default says nothing."""

    def tell(self, line: str) -> None:
        """What a person may want to know of builds, of a search, or of a repeat that was stored."""

    def planned(self, plan: Plan) -> None:
        """What will be measured is settled, and nothing has run."""

    def begin(self, n_total: int, n_skipped: int) -> None:
        """The run starts with so many slots, of which some are done already."""

    def turn(self, of: str) -> None:
        """What follows is of this side of a comparison."""

    def job(self, job: Job) -> None:
        """A load begins."""

    def event(self, job: Job, event: Event) -> None:
        """A worker said something."""

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
    drive: Drive,
    store: Store,
    settings: RunSettings | None = None,
    watcher: Watcher | None = None,
    choice: Choice = ALL,
) -> RunOutcome:
    """Run what is not done yet; every block is stored before the next one starts. The caller holds `machine_lock`.

    A load that cannot run leaves failed trials with its reason; a strict one ends the run if nothing of it was
    measured. Ctrl-C ends the run after the last stored block. Raises: StoreError, InputError for a context that
    cannot be.
    """
    settings, watcher = settings or RunSettings(), watcher or Watcher()
    for load in plan.loads:
        check_context({"job": load})
    going: OpenRun | None = None
    try:
        with begun(plan, store, settings, watcher) as going:
            watcher.begin(going.n_total, going.n_total - going.outcome().n_left)
            for load, blocks in going.todo:
                if blocks:
                    going.measure(load, blocks, drive, choice)
    except KeyboardInterrupt:
        if going is None:
            raise
        return going.outcome(interrupted=True)
    return going.outcome()


@contextmanager
def begun(plan: Experiment, store: Store, settings: RunSettings, watcher: Watcher) -> Iterator[OpenRun]:
    """A run of the store, ended with the block."""
    cases = {slot.case_id: slot.case for load in plan.loads for slot in load.slots}
    if settings.fresh:
        store.supersede(plan.environment, cases)
    with recorded_run(store, plan.environment, plan.record, settings.seed) as run_id:
        store.add_models(plan.facts)
        store.add_cases(run_id, cases)
        yield OpenRun(run_id, plan, store, watcher, settings)


class OpenRun:
    """A run in progress: what is left of it, and the one way in which its blocks are stored."""

    def __init__(self, run_id: int, plan: Experiment, store: Store, watcher: Watcher, settings: RunSettings) -> None:
        self.run_id, self.environment = run_id, plan.environment
        self._store, self._watcher = store, watcher
        done = {
            key: statuses for key, statuses in store.blocks(plan.environment).items()
            if settings.keep_failed or all(status.is_final for status in statuses.values())
        }  # fmt: skip
        self.todo = [
            (load, tuple(block for block in load.blocks if not block.case_ids <= done.get(block.key, {}).keys()))
            for load in plan.loads
        ]
        n_own = sum(len(load.slots) for load in plan.loads)
        self.n_total, self._before = plan.n_slots or n_own, plan.before
        self.n_skipped = n_own - sum(len(block.slots) for _, blocks in self.todo for block in blocks)
        self.done: dict[BlockKey, tuple[Trial, ...]] = {}  # by this run
        on_device = plan.environment.backend != "CPU"
        self._judge = BlockJudge(on_device=on_device, tries=store.tries(plan.environment))

    @property
    def n_run(self) -> int:
        return sum(map(len, self.done.values()))

    def outcome(self, *, interrupted: bool = False) -> RunOutcome:
        """What it has done so far, and the parts before."""
        n_failed = sum(trial.status is Status.FAILED for own in self.done.values() for trial in own)
        counts = {"n_ok": self.n_run - n_failed, "n_failed": n_failed, "n_skipped": self.n_skipped}
        if self._before is not None:
            counts = {name: n + getattr(self._before, name) for name, n in counts.items()}
        n_left = self.n_total - sum(counts.values())
        return RunOutcome(run_id=self.run_id, **counts, n_left=n_left, interrupted=interrupted)

    def add(self, block: Block, trials: Sequence[Trial], process: str | None = None, again: str = "") -> list[Measured]:
        """Store a measurement of the block; it is the last one, unless the block is to be measured `again`."""
        while True:
            try:
                stored = self._store.add(self.run_id, trials, process)
                break
            except DatabaseLockedError as error:  # what was measured is kept until it can be stored
                self._watcher.tell(f"{error.message} The block that was measured is kept; trying again.")
                time.sleep(_AGAIN_S)
        if again:
            self.done.pop(block.key, None)
        else:
            self.done[block.key] = tuple(one.trial for one in stored)
            for slot, one in zip(block.slots, stored, strict=True):
                self._watcher.trial(slot, one.trial)
        return stored

    def ready(self, load: Job, blocks: Iterable[Block]) -> Job:
        """A load with some of its blocks, and with the plain greedy outputs that this machine and build gave before."""
        known: dict[tuple[str, int], Reference] = {}
        for case_id, case in load.cases.items():
            if case.arm == "ar" and case.sampling.greedy:
                for stored in self._store.trials(TrialFilter(case_id=case_id, failed=False), rounds=False):
                    read, tokens = stored.trial.prompt_sha256, stored.trial.tokens
                    if stored.environment_key == environment_key(self.environment) and read is not None:
                        reference = Reference(prompt_sha256=read, n_predict=case.n_predict, tokens=tokens)
                        known.setdefault((read, case.n_predict), reference)
        slots = tuple(slot for block in blocks for slot in block.slots)
        return msgspec.structs.replace(load, slots=slots, references=tuple(known.values()))

    def measure(self, load: Job, blocks: Sequence[Block], drive: Drive, choice: Choice = ALL) -> None:
        """Measure some blocks of a load in a worker of their own, each stored before the next one starts."""
        job = self.ready(load, blocks)
        self._watcher.job(job)
        measured: dict[BlockKey, list[Measured]] = {}
        left = {block.key: block for block in blocks}

        def choose() -> Sequence[Block]:
            chosen = choice.next(tuple(left.values()), list(chain.from_iterable(measured.values()))) if left else ()
            for block in chosen:
                del left[block.key]
            return chosen

        try:
            with closing(drive(job, turns=self._judge.turns(job, choose))) as events:
                for event in events:
                    self._watcher.event(job, event)
                    if isinstance(event, BlockMeasured):
                        for block, trials, again in self._judge.take(event):
                            measured[block.key] = self.add(block, trials, event.process, again)
                            if again:
                                self._watcher.tell(f"A block is not used and measured again: {again}.")
                    elif isinstance(event, Resting) and choice.is_over():
                        break
        except MlsdError as error:
            if load.strict and not measured:
                raise
            while self._judge.waiting:
                block = self._judge.waiting.popleft()
                self.add(block, [failed_trial(slot, str(error)) for slot in block.slots])


def next_repeat(store: Store, environment: Environment, case_ids: Collection[str]) -> int:
    """The number after the last repeat that this machine and build ran of any of these cases."""
    known = store.blocks(environment)
    return 1 + max((key.repeat for key, statuses in known.items() if statuses.keys() & case_ids), default=-1)


# --- undisturbed or not -------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """A block as it is to be stored, and whether it is to be measured again."""

    block: Block
    trials: tuple[Trial, ...]
    again: str = ""  # why; empty: this was its last measurement


class BlockJudge:
    """Blocks on their way through workers: which is measured next, and whether it was undisturbed."""

    def __init__(self, *, on_device: bool, tries: Counter[BlockKey] | None = None) -> None:
        """`tries`: how often each block was disturbed in earlier runs."""
        self.waiting = deque[Block]()  # chosen of the job in progress and not measured, or to be measured again
        self._on_device, self._tries = on_device, Counter(tries or {})
        self._known: dict[BlockKey, Judged] = {}
        self._own: set[BlockKey] = set()  # blocks of the job in progress

    def turns(self, job: Job, choose: Callable[[], Sequence[Block]] | None = None) -> Iterator[Sequence[int]]:
        """The places of one block's slots after the other, until `choose` gives none; by default all once."""
        place = {(slot.case_id, slot.block, slot.repeat): index for index, slot in enumerate(job.slots)}
        every = iter([job.blocks])
        self._own = {block.key for block in job.blocks}
        self.waiting.clear()
        while chosen := (choose() if choose is not None else next(every, ())):
            self.waiting.extend(chosen)
            while self.waiting:
                yield [place[slot.case_id, slot.block, slot.repeat] for slot in self.waiting[0].slots]

    def take(self, event: BlockMeasured) -> Iterator[Judged]:
        """The block that was measured, and earlier ones that it shows to have been disturbed."""
        for judged in self.judge(self.waiting.popleft(), event.trials, event.heat):
            if judged.again and judged.block.key in self._own:
                self.waiting.appendleft(judged.block)
                yield judged
            else:
                yield judged._replace(again="")

    def judge(self, block: Block, trials: Sequence[Trial], heat: str | None = None) -> Iterator[Judged]:
        """The block, and those before it that its times show to have been disturbed."""
        self._known[block.key] = Judged(block, tuple(trials))
        if heat is not None:
            status = Status.HOT if self._tries[block.key] >= MOST_TRIES else Status.DISTURBED
            yield self._marked(block.key, dict.fromkeys(range(len(trials)), heat), status)
            return
        places = [(key, place) for key, known in self._known.items() for place in range(len(known.trials))]
        found = disturbed([self._known[key].trials[place] for key, place in places], on_device=self._on_device)
        reasons: dict[BlockKey, dict[int, str]] = defaultdict(dict)
        for at, reason in found.items():
            key, place = places[at]
            if self._known[key].trials[place].status is Status.VALID:
                reasons[key][place] = reason
        for key, own in reasons.items():
            yield self._marked(key, own, Status.DISTURBED)
        if block.key not in reasons:
            yield self._known[block.key]

    def _marked(self, key: BlockKey, reasons: dict[int, str], status: Status) -> Judged:
        """A known block whose valid trials at these places get another status."""
        block, trials, _ = self._known[key]
        changed = {place: why for place, why in reasons.items() if trials[place].status is Status.VALID}
        made = tuple(
            msgspec.structs.replace(trial, status=status, reason=changed[place]) if place in changed else trial
            for place, trial in enumerate(trials)
        )
        self._known[key] = Judged(block, made)
        again = next(iter(changed.values()), "") if self._tries[key] < MOST_TRIES else ""
        self._tries[key] += bool(changed)
        return Judged(block, made, again)


def disturbed(trials: Sequence[Trial], *, on_device: bool = False) -> dict[int, str]:
    """Places of trials in which the worker was stopped or starved, each with the reason why its time is not used.

    W and P are the medians of wall and processor time of the case's other trials. A generation that took w and p waited
    (w - W) - (p - P) W / P: what is longer than usual and was not computed. It is disturbed from a quarter of W on. Of
    work `on_device` the processor knows nothing: there w - W of decoding decides, whether the prompt was read anew or
    not, and heat is one of the reasons.
    """
    by_case = defaultdict(list)
    for place, trial in enumerate(trials):
        c = trial.conditions
        if trial.status is Status.FAILED or c is None or c.generation_ns is None or c.processor_ns is None:
            continue
        wall_ns = trial.decode_ns if on_device and trial.decode_ns is not None else c.generation_ns
        by_case[trial.case_id].append((place, wall_ns, c.processor_ns))
    found = {}
    for case in by_case.values():
        for place, wall, processor in case if len(case) > 1 else ():
            usual = statistics.median(w for i, w, _ in case if i != place)
            computed = statistics.median(p for i, _, p in case if i != place)
            own = 0.0 if on_device else max(0.0, processor - computed) * usual / max(computed, 1.0)
            waited = (wall - usual) - own
            if waited > max(DISTURBED_NS, DISTURBED_SHARE * usual):
                what = "heat, sleep or other work on the device took" if on_device else "the worker waited for"
                found[place] = (
                    f"{what} {waited / 1e9:.1f} of {wall / 1e9:.1f} s; its other repeats took {usual / 1e9:.1f} s"
                )
    return found

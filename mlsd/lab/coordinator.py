"""Letting every machine of a lab measure a plan, and storing what they measure; knows no network.

Machines share no work: each measures the whole plan as a run of its own, load by load. One that is lost goes on where
it stopped when it, or another with the same environment key, is there.
"""

import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import msgspec

from mlsd.errors import LabError, ModelFileError
from mlsd.lab.machine import Card, Origin, differences
from mlsd.measure.messages import failed_trial
from mlsd.measure.parent.blocks import Experiment, OpenRun, RunOutcome, RunSettings, Watcher, begun
from mlsd.planning.job import Block, BlockKey, Job, Slot, prompt_key
from mlsd.records import Environment, ModelFacts, ModelRef, Record, Status, Trial
from mlsd.store.store import Store

RECEIVE_S, POST_S = 0.2, 2.0
MOST_DEATHS = 3  # of machines in which one part made no progress; its next trial then failed


class MeasuredPart(Record, frozen=True, kw_only=True):
    """A machine measured a block of a part."""

    ticket: str
    trials: tuple[Trial, ...]
    process: str | None = None


class Ended(Record, frozen=True, kw_only=True):
    """A machine is through with a part."""

    ticket: str
    error: str | None = None  # why the rest of it cannot be measured
    unfit: bool = False  # it is the machine that cannot: others may


class Lab(Protocol):
    """The machines, as the coordinator sees them."""

    def machines(self) -> Mapping[str, Card]:
        """Those that are here now, by address."""

    def submit(self, address: str, ticket: str, job: Job) -> None:
        """Let one machine measure a part; what comes of it is heard."""

    def cancel(self, ticket: str) -> None:
        """Let a machine stop measuring a part, and free it."""

    def receive(self, timeout_s: float) -> Iterator[MeasuredPart | Ended]:
        """What machines said since the last time, waiting so long for the first."""

    def post(self, name: str, words: str, failures: Sequence[str]) -> None:
        """Tell whoever asks how far a run is, and what failed last."""


class PlaceOutcome(Record, frozen=True, kw_only=True):
    """What one machine of a lab measured."""

    environment: Environment
    outcome: RunOutcome


class LabOutcome(Record, frozen=True, kw_only=True):
    """What a lab measured, machine by machine."""

    places: tuple[PlaceOutcome, ...]
    refused: tuple[str, ...]  # machines that did not take part, and why


class LabPlan(Record, frozen=True, kw_only=True):
    """What a lab is to measure; the paths of its jobs' models are each machine's own affair."""

    loads: tuple[Job, ...]
    origin: Origin
    record: dict[str, Any]  # of the plan, for each run
    facts: tuple[ModelFacts, ...] = ()
    patience_s: float = 600.0  # without any machine for what is left


class _Part:
    """One machine's part: its run, the loads that are left of it, and which of them it is at."""

    def __init__(self, run: OpenRun) -> None:
        self.run = run
        self.left = deque((load, blocks) for load, (_, blocks) in enumerate(run.todo) if blocks)
        self.name = self.address = ""  # of the machine that is at it
        self.ticket: str | None = None
        self.load, self.blocks = 0, tuple[Block, ...]()
        self.said: dict[BlockKey, tuple[Trial, ...]] = {}
        self.n_deaths = 0  # of machines, since the last block
        self.last_seen_s = time.monotonic()

    def take(self, card: Card, models: Sequence[tuple[ModelRef, ...]]) -> bool:
        """Begin with the first load that this machine can run; whether there is one."""
        found = next((one for one in self.left if not card.lacks(models[one[0]])), None)
        if found is not None:
            self.left.remove(found)
            self.load, self.blocks = found
        return found is not None


def run_lab(plan: LabPlan, lab: Lab, store: Store, settings: RunSettings, watcher: Watcher | None = None) -> LabOutcome:
    """Measure a plan on the machines of a lab, those that come late included; every block is stored as it comes.

    Raises: LabError without any machine that may take part, ModelFileError for a model that no machine has; both
    before anything runs.
    """
    return _Coordinator(plan, lab, store, settings, watcher or Watcher()).run()


class _Coordinator:
    def __init__(self, plan: LabPlan, lab: Lab, store: Store, settings: RunSettings, watcher: Watcher) -> None:
        self._plan, self._lab, self._store, self._settings, self._watcher = plan, lab, store, settings, watcher
        self._models = [job.refs for job in plan.loads]
        self._runs = ExitStack()
        self._parts: dict[str, _Part] = {}  # by environment key
        self._refused: dict[str, str] = {}
        self._failures: deque[str] = deque(maxlen=3)
        self._posted_s = -POST_S

    def run(self) -> LabOutcome:
        self._check_first()
        interrupted = False
        try:
            self._look_around()
            while self._left():
                for result in self._lab.receive(RECEIVE_S):
                    self._take_in(result)
                self._look_around()
                self._post()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            for part in self._parts.values():
                if part.ticket is not None:
                    self._lab.cancel(part.ticket)
            self._runs.close()
            for part in self._parts.values():
                if part.run.outcome().n_left:
                    self._store.end_run(part.run.run_id, "interrupted")
        self._post(last=True)
        runs = [part.run for part in self._parts.values()]
        return LabOutcome(
            places=tuple(
                PlaceOutcome(environment=run.environment, outcome=run.outcome(interrupted=interrupted)) for run in runs
            ),
            refused=tuple(self._refused.values()),
        )

    def _post(self, *, last: bool = False) -> None:
        if last or time.monotonic() - self._posted_s > POST_S:
            self._posted_s = time.monotonic()
            outcomes = [part.run.outcome() for part in self._parts.values()]
            n_done, n_left = sum(o.n_ok + o.n_failed for o in outcomes), sum(o.n_left for o in outcomes)
            words = f"{n_done} trials measured, {n_left} left, on {len(outcomes)} kinds of machine"
            run_ids = "+".join(str(outcome.run_id) for outcome in outcomes)
            self._lab.post(f"run {run_ids}", f"{words}{', ended' if last else ''}", tuple(self._failures))

    def _check_first(self) -> None:
        machines = self._lab.machines()
        able = {address: card for address, card in machines.items() if self._may(address, card)}
        if not able:
            reasons = "; ".join(self._refused.values()) or "no machine has joined, or each measures for somebody else"
            raise LabError(f"The lab has no machine to measure on: {reasons}.", hint="Join one: mlsd lab join ADDRESS.")
        lacking = [models for models in self._models if all(card.lacks(models) for card in able.values())]
        if lacking:
            names = sorted({ref.id for models in lacking for card in able.values() for ref in card.lacks(models)})
            raise ModelFileError(
                f"No machine of the lab has {', '.join(names)}, or room and leave to download it.",
                hint=f"On one of them: mlsd models pull {' '.join(names)}, or join with --pull.",
            )

    def _may(self, address: str, card: Card) -> bool:
        if found := differences(card.origin, self._plan.origin):
            self._refused[address] = f"{card.name} at {address}: {'; '.join(found)}"
        return address not in self._refused

    def _left(self) -> bool:
        """Whether something is left that a machine does or may yet do."""
        parts = self._parts.values()
        if not parts or any(part.ticket is not None for part in parts):
            return True
        here = self._lab.machines()
        if here and all(address in self._refused for address in here):
            return False
        patience = self._plan.patience_s
        return any(time.monotonic() - part.last_seen_s < patience for part in parts if part.left)

    def _look_around(self) -> None:
        machines = {a: card for a, card in self._lab.machines().items() if self._may(a, card)}
        for part in self._parts.values():
            if part.ticket is not None and part.address not in machines:
                self._lab.cancel(part.ticket)
                self._give_back(part, died=True)
        for address, card in machines.items():
            part = self._part_of(card)
            busy = any(one.ticket is not None and one.address == address for one in self._parts.values())
            if not busy and part.ticket is None and part.take(card, self._models):  # a card may change its key
                self._submit(card, address, part)
            if part.address == address:
                part.last_seen_s = time.monotonic()

    def _part_of(self, card: Card) -> _Part:
        if card.key not in self._parts:
            base = self._plan
            plan = Experiment(loads=base.loads, environment=card.environment, facts=base.facts, record=base.record)
            begin = begun(plan, self._store, self._settings, self._watcher)
            self._parts[card.key] = _Part(self._runs.enter_context(begin))
            runs = [part.run for part in self._parts.values()]
            self._watcher.begin(sum(run.n_total for run in runs), sum(run.n_skipped for run in runs))
        return self._parts[card.key]

    def _submit(self, card: Card, address: str, part: _Part) -> None:
        slots = [slot for block in part.blocks for slot in block.slots]
        plain = {prompt_key(slot.case.prompt) for slot in slots if slot.case.arm == "ar"}
        rest = part.run.ready(self._plan.loads[part.load], part.blocks)
        if all(prompt_key(slot.case.prompt) in plain for slot in slots):
            rest = msgspec.structs.replace(rest, references=())
        part.ticket = f"{part.run.run_id}-{secrets.token_hex(16)}"  # which nobody else can name
        part.name, part.address, part.said = card.name, address, {}
        self._watcher.job(rest)
        self._lab.submit(address, part.ticket, rest)

    def _take_in(self, result: MeasuredPart | Ended) -> None:
        part = next((part for part in self._parts.values() if part.ticket == result.ticket), None)
        if part is None:  # of a machine that was given up: what it measured after that is measured again
            return
        if isinstance(result, MeasuredPart):
            self._store_block(part, result)
            return
        if result.unfit:
            self._refused[part.address] = f"{part.name} at {part.address}: {result.error}"
        elif result.error is not None:
            for block in part.blocks:
                if block.key not in part.run.done:
                    self._fail(part, block, result.error)
        self._give_back(part, died=result.error is None)

    def _store_block(self, part: _Part, result: MeasuredPart) -> None:
        """Store a block: the first measurement of it, or a later word of the machine that made that one."""
        planned = {tuple(map(_place_of_slot, block.slots)): block for block in part.blocks}
        block = planned.get(tuple(map(_place_of_trial, result.trials)))
        if block is None or (block.key in part.run.done and block.key not in part.said):
            return
        if part.said.get(block.key) == result.trials:  # said once more at the end
            return
        part.said[block.key] = result.trials
        part.run.add(block, result.trials, result.process)
        for slot, trial in zip(block.slots, part.run.done[block.key], strict=True):
            if trial.status is Status.FAILED:
                self._failures.append(f"{slot.case.target.id} gamma {slot.case.gamma}: {trial.reason}")

    def _fail(self, part: _Part, block: Block, reason: str) -> None:
        part.run.add(block, [failed_trial(slot, reason) for slot in block.slots])
        self._failures.append(f"{block.slots[0].case.target.id}: {reason}")

    def _give_back(self, part: _Part, *, died: bool) -> None:
        """What a load still lacks is left; one in which machines die again and again loses a block."""
        part.ticket = None
        part.n_deaths = part.n_deaths + 1 if died and not part.said else 0
        rest = tuple(block for block in part.blocks if block.key not in part.run.done)
        if rest and part.n_deaths >= MOST_DEATHS:
            self._fail(part, rest[0], f"The machine was lost {MOST_DEATHS} times while it measured this.")
            rest, part.n_deaths = rest[1:], 0
        if rest:
            part.left.appendleft((part.load, rest))


def _place_of_slot(slot: Slot) -> tuple[object, ...]:
    return slot.case_id, slot.case.arm, slot.case.gamma, slot.block, slot.repeat, slot.position


def _place_of_trial(trial: Trial) -> tuple[object, ...]:
    return trial.case_id, trial.arm, trial.gamma, trial.block, trial.repeat, trial.position

"""Giving the parts of a plan to the machines of a lab and storing what they measure; knows no network.

Machines with equal environment keys are one place: with `share` they share the cases of a plan, block by block; other
places each measure the whole plan as a run of their own.
"""

from __future__ import annotations

import math
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
from mlsd.measure.run.runner import RunInProgress, RunOutcome, RunPlan, RunSettings, Watcher, begun
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
    """What one place of a lab measured."""

    environment: Environment
    outcome: RunOutcome


class LabOutcome(Record, frozen=True, kw_only=True):
    """What a lab measured, place by place."""

    places: tuple[PlaceOutcome, ...]
    refused: tuple[str, ...]  # machines that did not take part, and why


class LabPlan(Record, frozen=True, kw_only=True):
    """What a lab is to measure; the paths of its jobs' models are each machine's own affair."""

    loads: tuple[Job, ...]
    origin: Origin
    share: bool
    record: dict[str, Any]  # of the plan, for each run
    facts: tuple[ModelFacts, ...] = ()
    patience_s: float = 600.0  # without any machine for a place


class _PartOfPlan(msgspec.Struct):
    load: int
    blocks: tuple[Block, ...]
    n_deaths: int = 0


class _Place:
    """Machines of one environment key, their run, and what is left of the plan there."""

    def __init__(self, run: RunInProgress) -> None:
        self.run = run
        self.parts = deque(_PartOfPlan(load=i, blocks=blocks) for i, (_, blocks) in enumerate(run.todo) if blocks)
        self.n_blocks = {part.load: len(part.blocks) for part in self.parts}
        self.last_seen_s = time.monotonic()

    def take(self, card: Card, models: Sequence[tuple[ModelRef, ...]], n_machines: int) -> _PartOfPlan | None:
        """The next part for a machine: whole blocks of the first load that it can run, its share of them."""
        for place, part in enumerate(self.parts):
            if card.lacks(models[part.load]):
                continue
            del self.parts[place]
            n_own = math.ceil(self.n_blocks[part.load] / n_machines)
            if rest := part.blocks[n_own:]:
                self.parts.appendleft(_PartOfPlan(load=part.load, blocks=rest))
            return _PartOfPlan(part.load, part.blocks[:n_own], part.n_deaths)
        return None


class _Work(msgspec.Struct):
    name: str  # of the machine
    address: str
    place: _Place
    part: _PartOfPlan
    said: dict[BlockKey, tuple[Trial, ...]] = msgspec.field(default_factory=dict)


def run_lab(plan: LabPlan, lab: Lab, store: Store, settings: RunSettings, watcher: Watcher | None = None) -> LabOutcome:
    """Measure a plan on the machines of a lab, those that come late included; every block is stored as it comes.

    Raises: LabError without any machine that may take part, ModelFileError for a model that no machine has; both
    before anything runs.
    """
    return _Coordinator(plan, lab, store, settings, watcher or Watcher()).run()


class _Coordinator:
    def __init__(self, plan: LabPlan, lab: Lab, store: Store, settings: RunSettings, watcher: Watcher) -> None:
        self._plan, self._lab, self._store, self._settings, self._watcher = plan, lab, store, settings, watcher
        self._models = [tuple(model.ref for model in (job.target, *job.models)) for job in plan.loads]
        self._runs = ExitStack()
        self._places: dict[str, _Place] = {}
        self._work: dict[str, _Work] = {}  # by ticket
        self._refused: dict[str, str] = {}
        self._n_tickets = 0
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
            for ticket in self._work:
                self._lab.cancel(ticket)
            self._runs.close()
            for place in self._places.values():
                if place.run.outcome().n_left:
                    self._store.end_run(place.run.run_id, "interrupted")
        self._post(last=True)
        return LabOutcome(
            places=tuple(
                PlaceOutcome(environment=place.run.environment, outcome=place.run.outcome(interrupted=interrupted))
                for place in self._places.values()
            ),
            refused=tuple(self._refused.values()),
        )

    def _post(self, *, last: bool = False) -> None:
        if last or time.monotonic() - self._posted_s > POST_S:
            self._posted_s = time.monotonic()
            outcomes = [place.run.outcome() for place in self._places.values()]
            n_done, n_left = sum(o.n_ok + o.n_failed for o in outcomes), sum(o.n_left for o in outcomes)
            words = f"{n_done} trials measured, {n_left} left, on {len(outcomes)} kinds of machine"
            run_ids = "+".join(str(place.run.run_id) for place in self._places.values())
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
        if self._work or not self._places:
            return True
        here = self._lab.machines()
        if here and all(address in self._refused for address in here):
            return False
        patience = self._plan.patience_s
        waiting = [place for place in self._places.values() if place.parts]
        return any(time.monotonic() - place.last_seen_s < patience for place in waiting)

    def _look_around(self) -> None:
        machines = {a: card for a, card in self._lab.machines().items() if self._may(a, card)}
        for ticket, work in list(self._work.items()):
            if work.address not in machines:
                self._lab.cancel(ticket)
                self._give_back(ticket, died=True)
        for card in machines.values():
            if card.key not in self._places:
                base = self._plan
                plan = RunPlan(loads=base.loads, environment=card.environment, facts=base.facts, record=base.record)
                begin = begun(plan, self._store, self._settings, self._watcher)
                self._places[card.key] = _Place(self._runs.enter_context(begin))
                runs = [place.run for place in self._places.values()]
                self._watcher.begin(sum(run.n_total for run in runs), sum(run.n_skipped for run in runs))
        busy = {work.address for work in self._work.values()}
        for address, card in machines.items():
            place = self._places[card.key]
            same_kind = [a for a, other in machines.items() if other.key == card.key]
            if address in busy or (not self._plan.share and address != min(same_kind)):
                if address in busy:
                    place.last_seen_s = time.monotonic()
                continue
            part = place.take(card, self._models, len(same_kind) if self._plan.share else 1)
            if part is not None:
                place.last_seen_s = time.monotonic()
                self._submit(card, address, place, part)

    def _submit(self, card: Card, address: str, place: _Place, part: _PartOfPlan) -> None:
        job = self._plan.loads[part.load]
        slots = [slot for block in part.blocks for slot in block.slots]
        plain = {prompt_key(slot.case.prompt) for slot in slots if slot.case.arm == "ar"}
        alone = all(prompt_key(slot.case.prompt) in plain for slot in slots)
        rest = place.run.ready(job, part.blocks)
        if alone:
            rest = msgspec.structs.replace(rest, references=())
        self._n_tickets += 1
        ticket = f"{place.run.run_id}-{self._n_tickets}-{secrets.token_hex(16)}"  # which nobody else can name
        self._work[ticket] = _Work(card.name, address, place, part)
        self._watcher.job(rest)
        self._lab.submit(address, ticket, rest)

    def _take_in(self, result: MeasuredPart | Ended) -> None:
        work = self._work.get(result.ticket)
        if work is None:  # of a machine that was given up: what it measured after that is measured elsewhere
            return
        if isinstance(result, MeasuredPart):
            self._store_block(work, result)
            return
        if result.unfit:
            self._refused[work.address] = f"{work.name} at {work.address}: {result.error}"
        elif result.error is not None:
            for block in work.part.blocks:
                if block.key not in work.place.run.done:
                    self._fail(work.place, block, result.error)
        self._give_back(result.ticket, died=result.error is None and not work.said)

    def _store_block(self, work: _Work, result: MeasuredPart) -> None:
        """Store a block: the first measurement of it, or a later word of the machine that made that one."""
        asked = {tuple(map(_place_of_slot, block.slots)): block for block in work.part.blocks}
        block = asked.get(tuple(map(_place_of_trial, result.trials)))
        if block is None or (block.key in work.place.run.done and block.key not in work.said):
            return
        if work.said.get(block.key) == result.trials:  # said once more at the end
            return
        work.said[block.key] = result.trials
        work.place.run.add(block, result.trials, result.process)
        for slot, trial in zip(block.slots, work.place.run.done[block.key], strict=True):
            if trial.status is Status.FAILED:
                self._failures.append(f"{slot.case.target.id} gamma {slot.case.gamma}: {trial.reason}")

    def _fail(self, place: _Place, block: Block, reason: str) -> None:
        place.run.add(block, [failed_trial(slot, reason) for slot in block.slots])
        self._failures.append(f"{block.slots[0].case.target.id}: {reason}")

    def _give_back(self, ticket: str, *, died: bool) -> None:
        """What a part still lacks goes back to its place; one in which machines die again and again loses a block."""
        work = self._work.pop(ticket)
        rest = tuple(block for block in work.part.blocks if block.key not in work.place.run.done)
        if not rest:
            return
        n_deaths = work.part.n_deaths + 1 if died and not work.said else 0
        if n_deaths >= MOST_DEATHS:
            self._fail(work.place, rest[0], f"The machine was lost {MOST_DEATHS} times while it measured this.")
            rest, n_deaths = rest[1:], 0
        if rest:
            work.place.parts.appendleft(_PartOfPlan(work.part.load, rest, n_deaths))


def _place_of_slot(slot: Slot) -> tuple[object, ...]:
    return slot.case_id, slot.case.arm, slot.case.gamma, slot.block, slot.repeat, slot.position


def _place_of_trial(trial: Trial) -> tuple[object, ...]:
    return trial.case_id, trial.arm, trial.gamma, trial.block, trial.repeat, trial.position

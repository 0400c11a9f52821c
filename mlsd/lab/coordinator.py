"""Letting every machine of a lab measure a plan, and storing what they measure.

Machines share no work: each measures the whole plan as a run of its own, load by load. One that is lost goes on where
it stopped when it, or another with the same environment key, is there.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from mlsd.errors import LabError, ModelFileError
from mlsd.lab.machine import Card, Ended, Origin, differences
from mlsd.measure.messages import BlockMeasured, failed_trial
from mlsd.measure.parent.blocks import Experiment, OpenRun, RunOutcome, RunSettings, Watcher, begun
from mlsd.planning.job import Block, BlockKey, Job, Slot, prompt_key
from mlsd.records import Environment, Record, Status, Trial
from mlsd.store.store import Store

if TYPE_CHECKING:
    from mlsd.lab.cluster import Cluster

RECEIVE_S, POST_S = 0.2, 2.0
MOST_DEATHS = 3  # of machines in which one part made no progress; its next trial then failed


class PlaceOutcome(Record, frozen=True, kw_only=True):
    """What one machine of a lab measured."""

    environment: Environment
    outcome: RunOutcome


class LabOutcome(Record, frozen=True, kw_only=True):
    """What a lab measured, machine by machine."""

    places: tuple[PlaceOutcome, ...]
    refused: tuple[str, ...]  # machines that did not take part, and why


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

    def take(self, card: Card, loads: Sequence[Job]) -> bool:
        """Begin with the first load that this machine can run; whether there is one."""
        found = next((one for one in self.left if not card.lacks(loads[one[0]].refs)), None)
        if found is not None:
            self.left.remove(found)
            self.load, self.blocks = found
        return found is not None


def run_lab(
    plan: Experiment,
    origin: Origin,
    lab: Cluster,
    store: Store,
    settings: RunSettings,
    watcher: Watcher | None = None,
    patience_s: float = 600.0,
) -> LabOutcome:
    """Measure a plan on the machines of a lab, those that come late included; every block is stored as it comes.

    Each machine puts its own environment, and its own paths of models, in place of the plan's. `patience_s` is how long
    to wait without any machine for what is left.
    Raises: LabError without any machine that may take part, ModelFileError for a model that no machine has; both
    before anything runs.
    """
    return _Coordinator(plan, origin, lab, store, settings, watcher or Watcher(), patience_s).run()


@dataclass
class _Coordinator:
    plan: Experiment
    origin: Origin
    lab: Cluster
    store: Store
    settings: RunSettings
    watcher: Watcher
    patience_s: float
    runs: ExitStack = field(default_factory=ExitStack)
    parts: dict[str, _Part] = field(default_factory=dict)  # by environment key
    refused: dict[str, str] = field(default_factory=dict)  # by address
    failures: deque[str] = field(default_factory=partial(deque, maxlen=3))
    posted_s: float = -POST_S

    def run(self) -> LabOutcome:
        self._check_models()
        interrupted, parts = False, self.parts
        try:
            self._assign()
            while self._is_left():
                for ticket, result in self.lab.receive(RECEIVE_S):
                    # What a machine that was given up measured after that is measured again.
                    if part := next((part for part in parts.values() if part.ticket == ticket), None):
                        self._take_in(part, result)
                self._assign()
                if time.monotonic() - self.posted_s > POST_S:
                    self.posted_s = time.monotonic()
                    self._post()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            for part in parts.values():
                if part.ticket is not None:
                    self.lab.cancel(part.ticket)
            self.runs.close()
            for part in parts.values():
                if part.run.outcome().n_left:
                    self.store.end_run(part.run.run_id, "interrupted")
        self._post(", ended")
        places = (
            PlaceOutcome(environment=part.run.environment, outcome=part.run.outcome(interrupted=interrupted))
            for part in parts.values()
        )
        return LabOutcome(places=tuple(places), refused=tuple(self.refused.values()))

    def _post(self, end: str = "") -> None:
        """Tell whoever wants the lab's status how far the run is."""
        outcomes = [part.run.outcome() for part in self.parts.values()]
        n_done, n_left = sum(o.n_ok + o.n_failed for o in outcomes), sum(o.n_left for o in outcomes)
        words = f"{n_done} trials measured, {n_left} left, on {len(outcomes)} kinds of machine{end}"
        self.lab.post(f"run {'+'.join(str(o.run_id) for o in outcomes)}", words, tuple(self.failures))

    def _able(self) -> dict[str, Card]:
        """The machines that are here and may take part, by address."""
        machines = self.lab.machines()
        for address, card in machines.items():
            if found := differences(card.origin, self.origin):
                self.refused[address] = f"{card.name} at {address}: {'; '.join(found)}"
        return {address: card for address, card in machines.items() if address not in self.refused}

    def _check_models(self) -> None:
        able = self._able().values()
        if not able:
            reasons = "; ".join(self.refused.values()) or "no machine has joined, or each measures for somebody else"
            raise LabError(f"The lab has no machine to measure on: {reasons}.", hint="Join one: mlsd lab join ADDRESS.")
        lacking = [job.refs for job in self.plan.loads if all(card.lacks(job.refs) for card in able)]
        if lacking:
            names = sorted({ref.id for models in lacking for card in able for ref in card.lacks(models)})
            raise ModelFileError(
                f"No machine of the lab has {', '.join(names)}, or room and leave to download it.",
                hint=f"On one of them: mlsd models pull {' '.join(names)}, or join with --pull.",
            )

    def _is_left(self) -> bool:
        """Whether something is left that a machine does or may yet do."""
        parts = self.parts.values()
        if not parts or any(part.ticket is not None for part in parts):
            return True
        here = self.lab.machines()
        if here and all(address in self.refused for address in here):
            return False
        return any(time.monotonic() - part.last_seen_s < self.patience_s for part in parts if part.left)

    def _assign(self) -> None:
        """Take back what lost machines were at, and let those that are free go on."""
        machines = self._able()
        for part in self.parts.values():
            if part.ticket is not None and part.address not in machines:
                self.lab.cancel(part.ticket)
                self._give_back(part, died=True)
        for address, card in machines.items():
            part = self._part_of(card)
            busy = any(one.ticket is not None and one.address == address for one in self.parts.values())
            if not busy and part.ticket is None and part.take(card, self.plan.loads):  # a card may change its key
                self._submit(card, address, part)
            if part.address == address:
                part.last_seen_s = time.monotonic()

    def _part_of(self, card: Card) -> _Part:
        if card.key not in self.parts:
            plan = msgspec.structs.replace(self.plan, environment=card.environment)
            begin = begun(plan, self.store, self.settings, self.watcher)
            self.parts[card.key] = _Part(self.runs.enter_context(begin))
            runs = [part.run for part in self.parts.values()]
            self.watcher.begin(sum(run.n_total for run in runs), sum(run.n_skipped for run in runs))
        return self.parts[card.key]

    def _submit(self, card: Card, address: str, part: _Part) -> None:
        slots = [slot for block in part.blocks for slot in block.slots]
        plain = {prompt_key(slot.case.prompt) for slot in slots if slot.case.arm == "ar"}
        rest = part.run.ready(self.plan.loads[part.load], part.blocks)
        if all(prompt_key(slot.case.prompt) in plain for slot in slots):
            rest = msgspec.structs.replace(rest, references=())
        part.ticket = f"{part.run.run_id}-{secrets.token_hex(16)}"  # which nobody else can name
        part.name, part.address, part.said = card.name, address, {}
        self.watcher.job(rest)
        self.lab.submit(address, part.ticket, rest, self.origin)

    def _take_in(self, part: _Part, result: BlockMeasured | Ended) -> None:
        if isinstance(result, BlockMeasured):
            self._store_block(part, result)
            return
        if result.unfit:
            self.refused[part.address] = f"{part.name} at {part.address}: {result.error}"
        elif result.error is not None:
            for block in part.blocks:
                if block.key not in part.run.done:
                    self._fail(part, block, result.error)
        self._give_back(part, died=result.error is None)

    def _store_block(self, part: _Part, result: BlockMeasured) -> None:
        """Store a block: the first measurement of it, or a later word of the machine that made that one."""
        planned = {tuple(map(_place_of, block.slots)): block for block in part.blocks}
        block = planned.get(tuple(map(_place_of, result.trials)))
        if block is None or (block.key in part.run.done and block.key not in part.said):
            return
        if part.said.get(block.key) == result.trials:  # said once more at the end
            return
        part.said[block.key] = result.trials
        part.run.add(block, result.trials)
        for slot, trial in zip(block.slots, part.run.done[block.key], strict=True):
            if trial.status is Status.FAILED:
                self.failures.append(f"{slot.case.target.id} gamma {slot.case.gamma}: {trial.reason}")

    def _fail(self, part: _Part, block: Block, reason: str) -> None:
        part.run.add(block, [failed_trial(slot, reason) for slot in block.slots])
        self.failures.append(f"{block.slots[0].case.target.id}: {reason}")

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


def _place_of(one: Slot | Trial) -> tuple[object, ...]:
    arm = one.case if isinstance(one, Slot) else one
    return one.case_id, arm.arm, arm.gamma, one.block, one.repeat, one.position

"""Suites on the machines of a lab: every machine runs all of them, and their databases become one.

A machine that is lost goes on where it stopped when it, or another with the same environment key, is there.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mlsd.errors import LabError, MlsdError
from mlsd.hardware import read_environment
from mlsd.lab.cluster import Cluster, MachineTask, measure_task
from mlsd.lab.machine import Card, Doing, differences, discard, measured, packed, read_card, unpacked
from mlsd.measure.parent.blocks import RunOutcome, RunSettings, Watcher
from mlsd.measure.parent.requests import answer_of, check_database, results_of
from mlsd.measure.process import run_info
from mlsd.planning.job import Slot
from mlsd.planning.question import Asked
from mlsd.planning.request import StudyRequest
from mlsd.records import Environment, QualityWarning, Record, Status
from mlsd.store.merge import merge
from mlsd.store.newest import study_path
from mlsd.store.rows import environment_key
from mlsd.store.store import Store

MOST_LOSSES = 3  # of a machine, while nothing new was measured; it is then given up
NOTHING_YET = Doing(target="", n_total=1, n_done=0)
_LOOK_S, _ASK_S = 0.2, 5.0  # between looks at who is there, and between questions what was measured
_CARD_S = 60.0  # to wait for the card of any machine: one that measures for somebody else gives none


class MachineOutcome(Record, frozen=True, kw_only=True):
    """What one machine of a lab measured."""

    environment: Environment
    outcome: RunOutcome


class LabStudyResult(Record, frozen=True, kw_only=True):
    """What a lab measured and where its trials are."""

    database: str
    machines: tuple[MachineOutcome, ...]
    refused: tuple[str, ...]  # machines that did not measure to the end, and why
    warnings: tuple[QualityWarning, ...]
    answer: tuple[str, ...] = ()  # which setting to use, a sentence for each machine and target


def run_lab_study(
    request: StudyRequest,
    address: str,
    certificate: Path | None = None,
    db: Path | None = None,
    *,
    settings: RunSettings,
    watcher: Watcher | None = None,
    options: Asked | None = None,
    patience_s: float = 600.0,
) -> LabStudyResult:
    """Run suites on the machines of a lab, those that come late included; models need not be here.

    `patience_s` is how long to wait for a machine that was lost. Raises: LabError without any machine that may take
    part, StoreError.
    """
    path = db or study_path(request.profile.name)
    check_database(path)
    environment = read_environment(run_info(request.overrides.engine))
    with Cluster(address, certificate) as lab:
        if not lab.addresses():
            raise LabError("The lab has no machine to measure on.", hint="Join one: mlsd lab join ADDRESS.")
        with Store.open(path) as store:
            n_runs = max((run.id for run in store.runs()), default=0)
            going = _LabRun(request, settings, dict(options or {}), environment, lab, store, watcher or Watcher())
            going.measure(patience_s)
            latest = {environment_key(run.environment): run.id for run in store.runs() if run.id > n_runs}
            warnings = tuple(one for one in store.warnings() if one.run_id > n_runs)
    answer = tuple(
        f"{share.environment.chip or share.environment.machine}: {sentence}"
        for key, share in going.shares.items()
        for sentence in (answer_of(results_of(path, latest[key])) if key in latest else ())
    )
    places = (
        MachineOutcome(environment=share.environment, outcome=share.outcome(latest.get(key, 0), going.interrupted))
        for key, share in going.shares.items()
    )
    return LabStudyResult(
        database=str(path),
        machines=tuple(places),
        refused=tuple(going.refused.values()),
        warnings=warnings,
        answer=answer,
    )


@dataclass
class _Share:
    """What machines with one environment key measure: all of the study, one machine at a time."""

    environment: Environment
    name: str
    address: str = ""
    task: MachineTask | None = None
    has_begun: bool = False  # some machine of this key was asked to measure
    is_over: bool = False  # measured, or given up
    doing: Doing = NOTHING_YET
    n_ok: int = 0
    n_failed: int = 0
    n_losses: int = 0
    seen_s: float = field(default_factory=time.monotonic)
    asked_s: float = field(default_factory=time.monotonic)

    def outcome(self, run_id: int, interrupted: bool) -> RunOutcome:
        """What was measured of it since the coordinator began."""
        n_left = self.doing.n_total - self.doing.n_done
        n_before = max(0, self.doing.n_done - self.n_ok - self.n_failed)
        return RunOutcome(
            run_id=run_id,
            n_ok=self.n_ok,
            n_failed=self.n_failed,
            n_skipped=n_before,
            n_left=n_left,
            interrupted=interrupted and n_left > 0,
        )


@dataclass
class _LabRun:
    request: StudyRequest
    settings: RunSettings
    options: Asked
    environment: Environment  # of this installation
    lab: Cluster
    store: Store
    watcher: Watcher
    cards: dict[str, Card | MachineTask | None] = field(default_factory=dict)  # by address; None: it gave none
    shares: dict[str, _Share] = field(default_factory=dict)  # by environment key
    refused: dict[str, str] = field(default_factory=dict)  # by address
    interrupted: bool = False

    def __post_init__(self) -> None:
        asked = (str(self.store.path.absolute()), self.environment.host, self.request.asked)
        self.study = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()[:16]

    def measure(self, patience_s: float) -> None:
        """Let every machine measure until all have, or those that are lost are waited for no longer."""
        began_s = time.monotonic()
        try:
            while True:
                here = self.lab.addresses()
                self._meet(here)
                for share in self.shares.values():
                    self._look(share, here)
                waits = any(one.task is not None for one in self.shares.values()) or any(
                    not one.is_over and time.monotonic() - one.seen_s < patience_s for one in self.shares.values()
                )
                asks = any(isinstance(card, MachineTask) for card in self.cards.values())
                if not waits and not (asks and not self.shares and time.monotonic() - began_s < _CARD_S):
                    break
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for share in self.shares.values():
                if share.task is not None:
                    self._take(share)
                    share.task.cancel()
        if not self.shares and not self.interrupted:
            why = "; ".join(self.refused.values()) or "each measures for somebody else"
            raise LabError(f"The lab has no machine to measure on: {why}.", hint="Join one: mlsd lab join ADDRESS.")

    def _meet(self, here: set[str]) -> None:
        """Ask those that came for their card, and refuse those that are another installation."""
        for address in here - self.cards.keys():
            self.cards[address] = self.lab.submit(address, read_card, self.request.overrides.engine)
        for address, task in list(self.cards.items()):
            if not isinstance(task, MachineTask) or not task.done:
                continue
            self.cards[address] = None
            try:
                card = task.result()
            except MlsdError as error:
                self.refused[address] = f"{address}: {error}"
                continue
            if card is not None and (found := differences(card.environment, self.environment)):
                self.refused[address] = f"{card.name} at {address}: {'; '.join(found)}"
            elif card is not None:
                self.cards[address] = card
                self.shares.setdefault(card.key, _Share(card.environment, card.name))

    def _look(self, share: _Share, here: set[str]) -> None:
        """Take in what a machine has measured, and let one go on that is free."""
        now_s, key = time.monotonic(), environment_key(share.environment)
        if share.task is not None and share.task.done:
            self._end(share)
        elif share.task is not None and now_s - share.asked_s > _ASK_S:
            self._take(share, share.doing.n_done)
        equal = [a for a, card in self.cards.items() if a in here and isinstance(card, Card) and card.key == key]
        able = [address for address in equal if address not in self.refused]
        if able:
            share.seen_s = now_s
            if share.task is None and not share.is_over:
                self._begin(share, able[0])
        elif equal:
            share.is_over = share.task is None  # nobody is waited for

    def _begin(self, share: _Share, address: str) -> None:
        share.address, fresh = address, self.settings.fresh
        if fresh and not share.has_begun:
            self.lab.ask(discard, self.study, of=[address])
        else:
            self._take(share)  # what was measured there before it, or an earlier coordinator, was lost
        known = environment_key(share.environment), b"" if fresh else packed(self.store)
        share.task = self.lab.submit(
            address, measure_task, self.request, self.settings, self.options, self.study, known
        )
        share.has_begun = True

    def _end(self, share: _Share) -> None:
        assert share.task is not None
        task, share.task = share.task, None
        outcome: RunOutcome | None = None
        try:
            outcome = task.result()
        except MlsdError as error:
            self.refused[share.address] = f"{share.name} at {share.address}: {error}"
        if self._take(share) and outcome is not None:
            share.is_over = True
            n_done = outcome.n_ok + outcome.n_failed + outcome.n_skipped
            share.doing = Doing(target="", n_total=n_done + outcome.n_left, n_done=n_done)
            self.lab.ask(discard, self.study, of=[share.address])
        elif share.address not in self.refused:
            share.n_losses += 1
            if share.n_losses >= MOST_LOSSES:
                share.is_over = True
                self.refused[share.address] = f"{share.name} was lost {MOST_LOSSES} times without measuring anything"

    def _take(self, share: _Share, n_known: int | None = None) -> bool:
        """Merge what a machine has measured, where that is more than is known; whether it answered."""
        share.asked_s = time.monotonic()
        answer = self.lab.ask(measured, self.study, n_known, of=[share.address]).get(share.address)
        if answer is None:
            return False
        doing, data = answer
        if not data:
            return True
        with unpacked(data) as theirs:
            new = merge(self.store, theirs, key=environment_key(share.environment)).new
        share.doing = doing or share.doing
        if new:
            share.n_losses = 0
            every = [one.doing for one in self.shares.values()]
            self.watcher.begin(sum(one.n_total for one in every), sum(one.n_done for one in every) - len(new))
            self.watcher.turn(share.name)
        for one in new:
            t = one.trial
            slot = Slot(case=one.case, case_id=t.case_id, block=t.block, repeat=t.repeat, position=t.position)
            share.n_failed += t.status is Status.FAILED
            share.n_ok += t.status is not Status.FAILED
            self.watcher.trial(slot, t)
        return True

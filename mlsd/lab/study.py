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
from mlsd.lab.machine import Card, Doing, differences, discard, measured, packed, status, unpacked
from mlsd.measure.parent.blocks import RunOutcome, RunSettings, Watcher
from mlsd.measure.parent.requests import answer_of, check_database, results_of
from mlsd.measure.process import run_info
from mlsd.planning.job import Slot
from mlsd.planning.question import Asked
from mlsd.planning.request import StudyRequest
from mlsd.records import Environment, QualityWarning, Record, Status
from mlsd.store.merge import merge
from mlsd.store.newest import study_path
from mlsd.store.store import Store
from mlsd.trials.results import Measured

MOST_LOSSES = 3  # of a machine, while nothing new was measured; it is then given up
NOTHING_YET = Doing(target="", n_total=1, n_done=0)
_LOOK_S, _ASK_S = 0.2, 5.0  # between looks at who is there, and between questions what was measured


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
            latest = {run.environment.host: run for run in store.runs() if run.id > n_runs}
            warnings = tuple(one for one in store.warnings() if one.run_id > n_runs)
    machines, answer = list[MachineOutcome](), list[str]()
    for share in going.shares.values():
        run, place = latest.get(share.card.environment.host), share.card.environment
        if run is not None:
            place = run.environment
            answer += (f"{place.chip or place.machine}: {line}" for line in answer_of(results_of(path, run.id)))
        outcome = share.outcome(0 if run is None else run.id, going.interrupted)
        machines.append(MachineOutcome(environment=place, outcome=outcome))
    return LabStudyResult(
        database=str(path),
        machines=tuple(machines),
        refused=tuple(going.refused),
        warnings=warnings,
        answer=tuple(answer),
    )


@dataclass
class _Share:
    """What one place measures: all of the study, on whichever of its processes is there."""

    card: Card
    task: MachineTask | None = None
    has_begun: bool = False
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
    here: set[str] = field(default_factory=set)  # addresses
    places: dict[str, str] = field(default_factory=dict)  # by address, also of those that left
    shares: dict[str, _Share] = field(default_factory=dict)  # by place
    refused: list[str] = field(default_factory=list)
    interrupted: bool = False

    def __post_init__(self) -> None:
        asked = (str(self.store.path.absolute()), self.environment.host, self.request.asked)
        self.study = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()[:16]

    def measure(self, patience_s: float) -> None:
        """Let every place measure until all have, or those that are lost are waited for no longer."""
        try:
            while True:
                self.here = self.lab.addresses()
                self._meet(self.here - self.places.keys())
                for share in self.shares.values():
                    self._look(share)
                now_s = time.monotonic()
                if not any(share.task and now_s - share.seen_s < patience_s for share in self.shares.values()):
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
            why = "; ".join(self.refused) or "none answers"
            raise LabError(f"The lab has no machine to measure on: {why}.", hint="Join one: mlsd lab join ADDRESS.")

    def _meet(self, addresses: set[str]) -> None:
        """Read the cards of those that came, and refuse those that are another installation."""
        for address, (card, doing) in self.lab.ask(status, of=addresses).items() if addresses else ():
            self.places[address] = card.place
            if found := differences(card.environment, self.environment):
                self.places[address] = ""
                self.refused.append(f"{card.name} at {address}: {'; '.join(found)}")
                continue
            if card.place not in self.shares and doing is not None:
                self.watcher.tell(f"{card.name} is still measuring for somebody.")
            self.shares.setdefault(card.place, _Share(card))

    def _processes(self, share: _Share) -> list[str]:
        """The addresses of a place that are here."""
        return [address for address in self.here if self.places.get(address) == share.card.place]

    def _look(self, share: _Share) -> None:
        """Take in what a place has measured, and let it begin or go on."""
        now_s, here = time.monotonic(), self._processes(share)
        share.seen_s = now_s if here else share.seen_s
        if share.task is not None and share.task.done:
            self._end(share)
        elif share.task is not None and here and now_s - share.asked_s > _ASK_S:
            self._take(share, share.doing.n_done)
        if share.task is None and not share.is_over:
            if self.settings.fresh and not share.has_begun:
                self.lab.ask(discard, self.study, of=here)
            known = b"" if self.settings.fresh else packed(self.store)
            share.has_begun, arguments = True, (self.request, self.settings, self.options, self.study, known)
            share.task = self.lab.submit(share.card.place, measure_task, *arguments)

    def _end(self, share: _Share) -> None:
        assert share.task is not None
        task, share.task = share.task, None
        outcome: RunOutcome | None = None
        try:
            outcome = task.result()
        except MlsdError as error:
            share.is_over = True
            self.refused.append(f"{share.card.name}: {error}")
        if self._take(share) and outcome is not None:
            share.is_over = True
            n_done = outcome.n_ok + outcome.n_failed + outcome.n_skipped
            share.doing = Doing(target="", n_total=n_done + outcome.n_left, n_done=n_done)
            self.lab.ask(discard, self.study, of=self._processes(share))
        elif not share.is_over:
            share.n_losses += 1
            if share.n_losses >= MOST_LOSSES:
                share.is_over = True
                self.refused.append(f"{share.card.name} was lost {MOST_LOSSES} times without measuring anything")

    def _take(self, share: _Share, n_known: int | None = None) -> bool:
        """Merge what a place has measured, where that is more than is known; whether it answered."""
        share.asked_s = time.monotonic()
        found = self.lab.ask(measured, self.study, n_known, of=self._processes(share))
        answers = [answer for answer in found.values() if answer]
        new = list[Measured]()
        for doing, data in answers:
            share.doing = doing or share.doing
            if data:
                with unpacked(data) as theirs:
                    new += merge(self.store, theirs).new
        if new:
            share.n_losses = 0
            every = [one.doing for one in self.shares.values()]
            self.watcher.begin(sum(one.n_total for one in every), sum(one.n_done for one in every) - len(new))
            self.watcher.turn(share.card.name)
        for one in new:
            t = one.trial
            slot = Slot(case=one.case, case_id=t.case_id, block=t.block, repeat=t.repeat, position=t.position)
            share.n_failed += t.status is Status.FAILED
            share.n_ok += t.status is not Status.FAILED
            self.watcher.trial(slot, t)
        return bool(answers)

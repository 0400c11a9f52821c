"""Suites on the machines of a lab: every machine runs all of them, and their databases become one.

A machine that is lost goes on where it stopped when it, or another with the same environment key, is there.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import LabError
from mlsd.hardware import read_environment
from mlsd.lab.cluster import Cluster, first_line
from mlsd.lab.machine import Card, Doing, differences, discard, measure, packed, status, unpacked
from mlsd.measure.parent.blocks import RunOutcome, Watcher
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

NOTHING_YET = Doing(target="", n_total=1, n_done=0)
_PATIENCE_S = 600.0  # with a machine that was lost
_LOOK_S = 5.0  # between looks at who is there and what was measured


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
    fresh: bool = False,
    cool_down_s: float | None = None,
    watcher: Watcher | None = None,
    options: Asked | None = None,
) -> LabStudyResult:
    """Run suites on the machines of a lab, those that come late included; models need not be here.

    Raises: LabError without any machine that may take part, StoreError.
    """
    path = db or study_path(request.profile.name)
    check_database(path)
    environment = read_environment(run_info(request.overrides.engine))
    asked = (str(path.absolute()), environment.host, request.asked, time.time_ns() if fresh else 0)
    study = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()[:16]
    with Cluster(address, certificate) as lab:
        if not lab.ask(status):
            raise LabError("The lab has no machine to measure on.", hint="Join one: mlsd lab join ADDRESS.")
        with Store.open(path) as store:
            n_runs = max((run.id for run in store.runs()), default=0)
            task = (request, cool_down_s, dict(options or {}), study, b"" if fresh else packed(path))
            going = _LabRun(lab, store, watcher or Watcher(), environment, task)
            going.measure()
            latest = {run.environment.host: run for run in store.runs() if run.id > n_runs}
            warnings = tuple(warning for warning in store.warnings() if warning.run_id > n_runs)
    if not going.shares and not going.interrupted:
        why = "; ".join(going.refused.values()) or "none answers"
        raise LabError(f"The lab has no machine to measure on: {why}.", hint="Join one: mlsd lab join ADDRESS.")
    machines, answer = list[MachineOutcome](), list[str]()
    for share in going.shares.values():
        run = latest.get(share.card.environment.host)
        environment = share.card.environment if run is None else run.environment
        if run is not None:
            name = environment.chip or environment.machine
            answer += (f"{name}: {line}" for line in answer_of(results_of(path, run.id)))
        outcome = share.outcome(0 if run is None else run.id, going.interrupted)
        machines.append(MachineOutcome(environment=environment, outcome=outcome))
    return LabStudyResult(
        database=str(path),
        machines=tuple(machines),
        refused=tuple(going.refused.values()),
        warnings=warnings,
        answer=tuple(answer),
    )


@dataclass
class _Share:
    """What one machine measures: all of the study, by whichever of its processes is there."""

    card: Card
    task: Any  # Dask's future
    doing: Doing = NOTHING_YET
    new: list[Measured] = field(default_factory=list)  # since the coordinator began
    seen_s: float = 0.0

    def outcome(self, run_id: int, interrupted: bool) -> RunOutcome:
        """What was measured of it since the coordinator began."""
        n_failed = sum(measured.trial.status is Status.FAILED for measured in self.new)
        n_left = self.doing.n_total - self.doing.n_done
        return RunOutcome(
            run_id=run_id, n_ok=len(self.new) - n_failed, n_failed=n_failed, n_left=n_left,
            n_skipped=max(0, self.doing.n_done - len(self.new)), interrupted=interrupted and n_left > 0,
        )  # fmt: skip


@dataclass
class _LabRun:
    lab: Cluster
    store: Store
    watcher: Watcher
    environment: Environment  # of this installation
    task: tuple[StudyRequest, float | None, Asked, str, bytes]  # what `measure` takes on a machine
    shares: dict[str, _Share] = field(default_factory=dict)  # by host
    refused: dict[str, str] = field(default_factory=dict)  # by address or host, and why
    interrupted: bool = False

    def measure(self) -> None:
        """Let every machine measure until all have, or those that are lost are waited for no longer."""
        try:
            while True:
                self._look()
                waiting = [share for share in self.shares.values() if not share.task.done()]
                if not any(time.monotonic() - share.seen_s < _PATIENCE_S for share in waiting):
                    break
                self.lab.wait([share.task for share in waiting], _LOOK_S)
        except KeyboardInterrupt:
            self.interrupted = True
            self._look()
        finally:
            left = [share.task for share in self.shares.values() if not share.task.done()]
            self.lab.cancel(left)
        for host, share in self.shares.items():
            if share.task not in left:
                self._end(host, share)
        if not (left or self.refused):
            self.lab.ask(discard, self.task[3])

    def _look(self) -> None:
        """See who is here, let those begin that came, and take in what was measured."""
        n_known = {host: share.doing.n_done for host, share in self.shares.items()}
        for address, (card, doing, data) in self.lab.ask(status, self.task[3], n_known).items():
            if unlike := differences(card.environment, self.environment):
                self.refused[address] = f"{card.name} at {address}: {'; '.join(unlike)}"
                continue
            if card.host not in self.shares:
                if doing is not None:
                    self.watcher.tell(f"{card.name} is still measuring for another run.")
                self.shares[card.host] = _Share(card, self.lab.submit(card.host, measure, *self.task))
            share = self.shares[card.host]
            share.seen_s = time.monotonic()
            if data and doing is not None:
                share.doing = doing
                self._take(share, data)

    def _end(self, host: str, share: _Share) -> None:
        """Take in all that a machine measured, and how it ended."""
        try:
            outcome, data = share.task.result()
        except Exception as error:  # noqa: BLE001 - what Dask raises of a machine that is lost again and again
            self.refused[host] = f"{share.card.name} was lost: {first_line(str(error))}"
            return
        self._take(share, data)
        if isinstance(outcome, str):
            self.refused[host] = f"{share.card.name}: {outcome}"
        else:
            n_done = outcome.n_ok + outcome.n_failed + outcome.n_skipped
            share.doing = Doing(target="", n_total=n_done + outcome.n_left, n_done=n_done)

    def _take(self, share: _Share, data: bytes) -> None:
        """Merge what a machine has measured into the study, and tell what of it is new."""
        with unpacked(data) as theirs:
            new = merge(self.store, theirs).new
        share.new += new
        if new:
            every = [each.doing for each in self.shares.values()]
            self.watcher.begin(sum(doing.n_total for doing in every), sum(doing.n_done for doing in every) - len(new))
            self.watcher.turn(share.card.name)
        for measured in new:
            trial = measured.trial
            number = {name: getattr(trial, name) for name in ("case_id", "block", "repeat", "position")}
            self.watcher.trial(Slot(case=measured.case, **number), trial)

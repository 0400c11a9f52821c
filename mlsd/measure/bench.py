"""A bench: what measures blocks of a job, one call a block, in worker processes that survive the death of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from mlsd.clock import Clock, MonotonicClock
from mlsd.errors import WorkerError
from mlsd.hardware import read_conditions
from mlsd.measure.messages import BlockMeasured, Event, Progress, Started, Turn, failed_trial
from mlsd.measure.process import PATIENCE_S, Variables, Worker
from mlsd.planning.job import Block, Job, Slot
from mlsd.planning.time_estimate import load_preparation_s
from mlsd.records import Anchors, Conditions, Trial
from mlsd.trials.arms import arm_of
from mlsd.units import NS_PER_S, format_duration

_SLOTS = "mlsd.measure.worker.serve:measure_slots"  # what measures a job in a worker, turn by turn

_MOST_READY = 20  # times the expected time, after which a worker that is still getting ready is given up

StartWorker = Callable[[str, Mapping[str, Job], Variables], Worker]
Report = Callable[[Event], object]  # hears that a trial started, and how far it is


class BlockBench(ABC):
    """What measures blocks, and the machine around it: its clock, its conditions, its anchors."""

    clock: Clock = MonotonicClock()

    @abstractmethod
    def measure(self, block: Block) -> BlockMeasured:
        """The trials of a block, in its order; one that gives no number has failed."""

    def go_on(self, job: Job) -> None:
        """From now on measure blocks of this job, of the same models and prompts."""
        raise NotImplementedError

    def conditions(self) -> Conditions:
        """The state of this machine."""
        return read_conditions()

    def read_anchors(self) -> Anchors | None:
        """Both anchors now; None where nothing can be timed."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what was started."""


class Bench(BlockBench):
    """A worker process that measures blocks of one job; one that dies, or is silent for too long, is replaced."""

    def __init__(
        self,
        job: Job,
        report: Report = lambda event: None,
        *,
        variables: Variables = None,
        patience_s: float = PATIENCE_S,
        start: StartWorker = Worker,
    ) -> None:
        self._job, self._report, self._patience_s = job, report, patience_s
        self._start, self._variables = start, variables
        self._most_ready_s = patience_s + _MOST_READY * (load_preparation_s(job) or 0.0)
        self._worker: Worker | None = None
        self._last: Event | None = None  # what the worker said of the turn in progress
        self._is_startless = False  # the last worker died before it began a slot

    def measure(self, block: Block) -> BlockMeasured:
        """The trials of a block; one in which the worker dies is measured once more, whole, by another worker.

        A slot that costs a second worker is a failed trial, and the others are measured without it. Raises: the
        worker's own MlsdError for a refused job, WorkerError when two workers in a row cannot start a slot, or one is
        not ready long after it was expected to be.
        """
        deaths, trials = Counter[str](), dict[str, Trial]()  # by case
        while todo := tuple(slot for slot in block.slots if slot.case_id not in trials):
            answer = self._ask(todo)
            if isinstance(answer, BlockMeasured):
                trials |= {trial.case_id: trial for trial in answer.trials}
                break
            started, reason = answer
            deaths[started.case_id] += 1
            if deaths[started.case_id] > 1:
                trials[started.case_id] = failed_trial(started, f"The worker process died: {reason}")
        else:
            answer = BlockMeasured(trials=())
        return msgspec.structs.replace(answer, trials=tuple(trials[slot.case_id] for slot in block.slots))

    def go_on(self, job: Job) -> None:
        self._job = job

    def read_anchors(self) -> Anchors | None:
        answer = self._ask(())
        return answer.anchors if isinstance(answer, BlockMeasured) else None

    def _ask(self, slots: tuple[Slot, ...]) -> BlockMeasured | tuple[Slot, str]:
        """What a worker answers to a turn; of one that dies the slot in which it did, and how."""
        while True:
            worker = self._worker = self._worker or self._start(_SLOTS, {"job": self._job}, self._variables)
            started, begun_ns, self._last = None, self.clock.now_ns(), None
            worker.send(Turn(slots=slots, one_arm=self._job.one_arm))
            for event in worker.events(self._patience_s, self._doing):
                if isinstance(event, BlockMeasured):
                    self._is_startless = False
                    return event
                if isinstance(event, Started):
                    started = event.slot
                if isinstance(event, Started | Progress):
                    self._last = event
                elif self._last is None and (self.clock.now_ns() - begun_ns) / NS_PER_S > self._most_ready_s:
                    self.close()
                    raise WorkerError(
                        f"{self._doing()} took over {format_duration(self._most_ready_s)}, far longer than expected.",
                        hint="Fewer --gamma or arms are checked sooner; `mlsd doctor model MODEL` tries it alone.",
                    )
                self._report(event)
            reason, advice = worker.exit_reason(), worker.advice()
            self.close()
            if started is not None:
                self._is_startless = False
                return started, reason
            if self._is_startless:
                raise WorkerError(f"The worker process died before its first trial: {reason}", hint=advice)
            self._is_startless = True

    def _doing(self) -> str:
        """What the worker is at, after the last that it said."""
        if isinstance(self._last, Started | Progress):
            began = isinstance(self._last, Progress)
            doing = "Decoding or judging" if began else "Warming up, or reading the prompt of"
            return f"{doing} {self._job.target.ref.id} {arm_of(self._last.slot.case).setting}"
        names = " + ".join(ref.id for ref in self._job.refs)
        return f"Loading {names}, or checking how its arms roll back"

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None

"""The clock by which a process accounts for its own time, stage by stage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from mlsd.clock import Clock
from mlsd.trials.stages import STAGES, Stage, StageTime


class StageClock:
    """Books wall and processor time on one stage at a time; a stage inside another one is not counted twice."""

    def __init__(self, clock: Clock, stage: Stage = "other") -> None:
        self._clock, self._stage = clock, stage
        self._wall_ns, self._processor_ns = Counter[Stage](), Counter[Stage]()
        self._last_wall_ns, self._last_processor_ns = clock.now_ns(), time.process_time_ns()

    @classmethod
    def of_process(cls, clock: Clock) -> StageClock:
        """A clock that has run since this process started, which is part of loading."""
        stages = cls(clock, "load")
        stages._wall_ns["load"] = max(0, round(_age_s() * 1e9))
        stages._last_processor_ns = 0
        return stages

    def switch(self, stage: Stage) -> None:
        """From now on time belongs to this stage."""
        wall_ns, processor_ns = self._clock.now_ns(), time.process_time_ns()
        self._wall_ns[self._stage] += wall_ns - self._last_wall_ns
        self._processor_ns[self._stage] += processor_ns - self._last_processor_ns
        self._last_wall_ns, self._last_processor_ns, self._stage = wall_ns, processor_ns, stage

    @contextmanager
    def of(self, stage: Stage) -> Iterator[None]:
        """Inside, time belongs to this stage, unless another one is entered there."""
        outer = self._stage
        self.switch(stage)
        try:
            yield
        finally:
            self.switch(outer)

    def take(self) -> tuple[StageTime, ...]:
        """What each stage took since the last call."""
        self.switch(self._stage)
        taken = tuple(
            StageTime(stage=stage, wall_ns=self._wall_ns[stage], processor_ns=self._processor_ns[stage])
            for stage in STAGES
            if self._wall_ns[stage] or self._processor_ns[stage]
        )
        self._wall_ns.clear()
        self._processor_ns.clear()
        return taken


def _age_s() -> float:
    """How long ago this process started, in s."""
    started_s = psutil.Process().create_time()
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux counts from its start, which psutil knows in whole seconds alone
        return time.clock_gettime(time.CLOCK_BOOTTIME) - (started_s - psutil.boot_time())
    return time.time() - started_s

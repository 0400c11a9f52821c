"""A worker's account of its own time: nothing is lost, and nothing counts twice."""

import subprocess
import sys
import time

import pytest

from mlsd.clock import MonotonicClock
from mlsd.measure.stage_clock import StageClock
from tests.engine.fake import FakeClock


def test_a_stage_inside_another_one_is_not_counted_twice() -> None:
    clock = FakeClock()
    stages = StageClock(clock, "load")
    clock.advance(5)
    with stages.of("prefill"):
        clock.advance(20)
        with stages.of("warm-up"):
            clock.advance(300)
        stages.switch("timed rounds")
        clock.advance(4_000)
    clock.advance(7)
    taken = {time.stage: time.wall_ns for time in stages.take()}
    assert taken == {"load": 12, "prefill": 20, "warm-up": 300, "timed rounds": 4_000}
    clock.advance(1)
    assert [(time.stage, time.wall_ns) for time in stages.take() if time.wall_ns] == [("load", 1)]


def test_a_stage_that_fails_gives_the_time_behind_it_back() -> None:
    clock = FakeClock()
    stages = StageClock(clock)
    with pytest.raises(ValueError, match="x"), stages.of("judging"):
        clock.advance(3)
        raise ValueError("x")
    clock.advance(4)
    assert {one.stage: one.wall_ns for one in stages.take()} == {"judging": 3, "other": 4}


def test_the_clock_of_a_process_began_when_the_process_did() -> None:
    used_ns = time.process_time_ns()
    (loading,) = StageClock.of_process(MonotonicClock()).take()
    assert loading.stage == "load" and loading.processor_ns >= used_ns and loading.wall_ns > 0


def test_a_process_is_never_older_than_the_wait_for_it() -> None:
    script = (
        "from mlsd.clock import MonotonicClock; from mlsd.measure.stage_clock import StageClock\n"
        "print(StageClock.of_process(MonotonicClock()).take()[0].wall_ns)"
    )
    before_ns = time.monotonic_ns()
    answer = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    tick_ns = 10_000_000  # in which Linux counts the starts of processes
    assert 0 < int(answer.stdout) <= time.monotonic_ns() - before_ns + tick_ns

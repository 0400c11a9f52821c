"""Time budgets on a clock that moves only when told."""

from collections.abc import Sequence
from typing import cast

import pytest

from mlsd.engine.llama.context import LlamaContext
from mlsd.measure.worker.timing import PassBench, TimeBudget
from tests.engine.fake import FakeClock


def test_a_budget_ends_with_its_span_and_a_part_is_a_share_of_the_whole_that_ends_with_it() -> None:
    clock = FakeClock()
    budget, endless = TimeBudget(clock, 100), TimeBudget(clock)
    clock.advance(50)
    assert not budget.is_over and budget.left_ns == 50
    assert [budget.part(0.3).span_ns, budget.part(0.9).span_ns] == [30, 50]
    clock.advance(10**18)
    assert budget.is_over and budget.part(0.3).is_over
    assert not endless.is_over and not endless.part(0.1).is_over


class _Ramp:
    """A context on a device whose passes take less each time that it is used, until it is warm."""

    def __init__(self, clock: FakeClock, *factors: float) -> None:
        self._clock, self._factors = clock, list(factors)

    def decode(self, tokens: Sequence[int], n_outputs: int = 1) -> None:
        self._clock.advance(round(1000 * (self._factors.pop(0) if self._factors else 1.0)))

    def greedy(self) -> list[int]:
        return [0]

    def truncate(self, length: int) -> None:
        pass


@pytest.mark.parametrize(("cold", "measured"), [(True, 1000), (False, 1080)])
def test_a_pass_is_timed_once_the_device_is_warm(cold: bool, measured: int) -> None:
    clock = FakeClock()
    context = cast("LlamaContext", _Ramp(clock, 1.3, 1.12, 1.1, 1.08, 1.05, 1.04))
    bench = PassBench(context, clock, range(100), 4, recurrent=False, cold=cold)
    bench.burst("target_pass", 1, TimeBudget(clock), must=True)
    assert bench.points[0].span_ns == pytest.approx(measured, rel=0.03)


def test_passes_that_never_agree_are_timed_all_the_same() -> None:
    clock = FakeClock()
    context = cast("LlamaContext", _Ramp(clock, *([1.0, 1.5] * 30)))
    bench = PassBench(context, clock, range(100), 4, recurrent=False, cold=True)
    bench.burst("target_pass", 1, TimeBudget(clock), must=True)
    assert bench.points

"""Time budgets on a clock that moves only when told."""

from __future__ import annotations

from mlsd.measure.worker.time_budget import Ledger, TimeBudget
from tests.engine.fake import FakeClock


def test_a_budget_ends_when_its_span_is_over() -> None:
    clock = FakeClock()
    budget = TimeBudget(clock, 100)
    clock.advance(60)
    assert not budget.is_over
    assert budget.has(39) and not budget.has(40)
    clock.advance(40)
    assert budget.is_over


def test_a_part_is_a_share_of_the_whole_and_ends_with_it() -> None:
    clock = FakeClock()
    budget = TimeBudget(clock, 100)
    clock.advance(50)
    assert budget.part(0.3).span_ns == 30
    assert budget.fraction(0.3).span_ns == 15
    assert budget.part(0.9).span_ns == 50
    clock.advance(80)
    assert budget.part(0.3).span_ns == 0


def test_a_budget_without_a_span_never_ends() -> None:
    clock = FakeClock()
    budget = TimeBudget(clock)
    clock.advance(10**18)
    assert budget.has(1e30) and not budget.is_over and not budget.part(0.1).is_over


def test_a_ledger_adds_what_each_part_took() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    for span in (3, 4):
        with ledger.entry("a"):
            clock.advance(span)
    assert ledger.spent_ns == {"a": 7}

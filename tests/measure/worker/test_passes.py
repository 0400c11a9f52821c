"""Time budgets on a clock that moves only when told."""

from __future__ import annotations

from mlsd.measure.worker.passes import Ledger, TimeBudget
from tests.engine.fake import FakeClock


def test_a_budget_ends_with_its_span_and_a_part_is_a_share_of_the_whole_that_ends_with_it() -> None:
    clock = FakeClock()
    budget, endless = TimeBudget(clock, 100), TimeBudget(clock)
    clock.advance(50)
    assert not budget.is_over and budget.left_ns == 50
    assert [budget.part(0.3).span_ns, budget.part(0.9).span_ns, budget.fraction(0.3).span_ns] == [30, 50, 15]
    clock.advance(10**18)
    assert budget.is_over and budget.part(0.3).is_over
    assert not endless.is_over and not endless.part(0.1).is_over


def test_a_ledger_adds_what_each_part_took() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    for span in (3, 4):
        with ledger.entry("a"):
            clock.advance(span)
    assert ledger.spent_ns == {"a": 7}

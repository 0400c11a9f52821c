"""Joules per token are there only where a counter can be believed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from mlsd.analysis.results.energy import joules
from mlsd.measure.run.checks import check_run
from mlsd.records import Conditions, Trial
from tests.analysis.studies import DENSE, case, trial

S = 10**9


def trials(readings: Sequence[tuple[float, float | None]]) -> list[Trial]:
    """Trials of 33 tokens with (seconds, millijoules)."""
    plain = case(DENSE, "code")
    return [
        msgspec.structs.replace(
            trial(plain, i, 0, 0),
            conditions=Conditions(generation_ns=round(s * S), energy_mj=mj, energy_source="chip"),
        )
        for i, (s, mj) in enumerate(readings)
    ]


def test_trials_are_joined_until_they_hold_ten_seconds() -> None:
    found = joules(trials([(4.0, 33_000.0), (4.0, 33_000.0), (4.0, 33_000.0)]))
    assert found.per_token == pytest.approx(1.0)
    assert found.window_s == 12.0
    short = joules(trials([(4.0, 33_000.0)]))
    assert (short.per_token, short.why_not) == (None, "4.0 s of 10 that are needed")


@pytest.mark.parametrize(
    ("readings", "why"),
    [
        ([(6.0, 0.0), (6.0, 60_000.0)], "stood still"),  # an M5 Max: nothing, then too much
        ([(0.2, 0.0)] * 60, "stood still"),
        ([(6.0, 30_000.0), (6.0, -4_000.0)], "jumped back"),
    ],
)
def test_a_counter_that_stands_still_or_jumps_back_gives_none_and_a_warning(
    readings: list[tuple[float, float]], why: str
) -> None:
    told = trials(readings)
    assert joules(told).per_token is None
    assert why in joules(told).why_not
    assert [why in w.message for w in check_run(told) if w.code == "energy_counter"] == [True]


def test_a_slow_counter_is_no_fault_of_short_trials() -> None:
    told = trials([(0.2, 0.0 if i % 2 else 200.0) for i in range(60)])  # an M1 Ultra publishes every third of a second
    assert joules(told).per_token is not None
    assert not [w for w in check_run(told) if w.code == "energy_counter"]


def test_a_trial_without_a_reading_leaves_no_figure() -> None:
    assert joules(trials([(12.0, 1_000.0), (12.0, None)])).per_token is None
    assert joules([]).per_token is None

"""Joules per token are there only where a counter can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.results.energy import joules
from mlsd.analysis.study.study import read_study
from mlsd.measure.run.checks import check_run
from mlsd.measure.store.store import Store
from mlsd.records import Conditions, Trial
from mlsd.report.page import build
from tests.analysis.studies import DENSE, blocks, case, trial, write

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


@pytest.mark.usefixtures("unsaved_figures")
def test_speculation_and_plain_decoding_are_compared_in_the_same_blocks(tmp_path: Path) -> None:
    made = []
    for one, done in blocks(DENSE, "D", gammas=(4,)):
        conditions = Conditions(generation_ns=5 * S, energy_mj=33_000.0 * (2 if one.gamma else 1), energy_source="chip")
        made.append((one, msgspec.structs.replace(done, conditions=conditions)))
    with Store.open(write(tmp_path / "s.sqlite", made), read_only=True) as store:
        study = read_study(store)
    (row,) = study.energy
    assert (row.arm.setting, row.ratio) == ("tiny-draft, gamma 4", pytest.approx(2.0))
    assert row.plain.per_token == pytest.approx(1.0)
    section = next(s for s in build(study).sections if s.id == "energy")
    assert section.tables[0].rows[0][5].text == "2.00x"


@pytest.mark.usefixtures("unsaved_figures")
def test_without_a_counter_the_report_has_no_such_section(tmp_path: Path) -> None:
    with Store.open(write(tmp_path / "s.sqlite", blocks(DENSE, "D")), read_only=True) as store:
        assert "energy" not in {section.id for section in build(read_study(store)).sections}

"""Machines stand side by side, each with its own figures."""

from pathlib import Path

import msgspec
import pytest

import mlsd
from mlsd.analysis.study.study import Study
from mlsd.records import Round, Trial
from mlsd.report.page import build
from mlsd.report.tables.sides import machine_table
from tests.analysis.studies import DENSE, MACHINE, MOE, blocks, write

OTHER = msgspec.structs.replace(MACHINE, host="b" * 16, chip="Apple M4 Pro", peak_bandwidth_gb_s=273.0)


def twice_as_long(trial: Trial) -> Trial:
    def slow(before: Round) -> Round:
        times = {name: 2 * getattr(before, name) for name in before.__struct_fields__ if name.endswith("_ns")}
        return msgspec.structs.replace(before, **times)

    rounds = tuple(map(slow, trial.rounds))
    return msgspec.structs.replace(trial, rounds=rounds, decode_ns=2 * (trial.decode_ns or 0))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """One machine's study, and beside it a second machine on which every time is twice as long."""
    trials = [*blocks(MOE, "B", alpha=0.75), *blocks(DENSE, "D", alpha=0.1)]
    path = write(tmp_path / "both.sqlite", [(case, twice_as_long(trial)) for case, trial in trials], OTHER)
    return mlsd.open_study(write(path, trials))


@pytest.mark.slow
@pytest.mark.usefixtures("unsaved_figures")
def test_each_machine_has_its_own_figures_and_none_is_pooled(study: Study) -> None:
    table = machine_table(study)
    rows = {
        (row[0].text, row[1].text): {h.label: c for h, c in zip(table.heads, row, strict=True)} for row in table.rows
    }
    assert len(rows) == 4
    for target in (MOE.ref.id, DENSE.ref.id):
        fast, slow = rows["Apple M2 (Metal)", target], rows["Apple M4 Pro (Metal)", target]
        tok_s = slow["plain tok/s"].sort
        assert isinstance(tok_s, float)
        assert fast["plain tok/s"].sort == pytest.approx(2 * tok_s, rel=1e-9)
        assert fast["its speedup"].sort == pytest.approx(slow["its speedup"].sort), "a ratio knows no clock"
        assert (fast["published GB/s"].sort, slow["published GB/s"].sort) == (100.0, 273.0)
        assert slow["read GB/s"].sort == pytest.approx(tok_s * (study.facts[target].active_bytes or 0) / 1e9)
        assert (fast["T(5)/T(1)"].text, fast["N(8)"].text) == ("-", "-"), "what nobody timed is not there"
    assert "machines" in {section.id for section in build(study).sections}
    (alone,) = study.other_machines
    assert "machines" not in {section.id for section in build(alone).sections}

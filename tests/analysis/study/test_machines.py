"""Machines stand side by side, each with its own figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.study.machines import machine_claims, machine_names, machine_rows
from mlsd.analysis.study.study import Study, read_study
from mlsd.errors import AnalysisError
from mlsd.measure.store.store import Store
from mlsd.records import Round, Trial
from mlsd.report.page import build
from tests.analysis.studies import DENSE, MACHINE, MOE, blocks, write

OTHER = msgspec.structs.replace(MACHINE, host="b" * 16, chip="Apple M4 Pro", peak_bandwidth_gb_s=273.0)


def twice_as_long(trial: Trial) -> Trial:
    def slow(one: Round) -> Round:
        times = {name: 2 * getattr(one, name) for name in one.__struct_fields__ if name.endswith("_ns")}
        return msgspec.structs.replace(one, **times)

    rounds = tuple(map(slow, trial.rounds))
    return msgspec.structs.replace(trial, rounds=rounds, decode_ns=2 * (trial.decode_ns or 0))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """One machine's study, and beside it a second machine on which every time is twice as long."""
    path = tmp_path_factory.mktemp("machines") / "both.sqlite"
    trials = [*blocks(MOE, "B", alpha=0.75), *blocks(DENSE, "D", alpha=0.1)]
    write(path, [(case, twice_as_long(trial)) for case, trial in trials], OTHER)
    with Store.open(write(path, trials), read_only=True) as store:
        return read_study(store)


def test_each_machine_has_its_own_figures_and_none_is_pooled(study: Study) -> None:
    rows = {(row.machine, row.target): row for row in machine_rows(study)}
    assert len(rows) == 4
    for target in (MOE.ref.id, DENSE.ref.id):
        fast, slow = rows["Apple M2 (Metal)", target], rows["Apple M4 Pro (Metal)", target]
        assert fast.plain_tok_s is not None and slow.plain_tok_s is not None
        assert fast.plain_tok_s == pytest.approx(2 * slow.plain_tok_s, rel=1e-9)
        assert fast.best is not None and slow.best is not None
        assert fast.best.ratio is not None and slow.best.ratio is not None
        assert fast.best.ratio.value == pytest.approx(slow.best.ratio.value), "a ratio knows no clock"
        assert (fast.peak_gb_s, slow.peak_gb_s) == (100.0, 273.0)
        assert slow.read_gb_s is not None
        n_bytes = study.facts[target].active_bytes or 0
        assert slow.read_gb_s == pytest.approx(slow.plain_tok_s * n_bytes / 1e9)
        assert (fast.wide_pass, fast.experts) == (None, None), "what nobody timed is not there"


@pytest.mark.usefixtures("unsaved_figures")
def test_claims_stand_machine_by_machine_and_the_report_has_the_section(study: Study) -> None:
    claims = machine_claims(study)
    assert claims
    assert all(len(claim.decisions) == 2 for claim in claims)
    section = next(s for s in build(study).sections if s.id == "machines")
    assert [table.title for table in section.tables] == ["Machines side by side", "Claims by machine"]
    assert [picture.id for picture in section.pictures] == ["over-bandwidth", "over-parameters"]


@pytest.mark.usefixtures("unsaved_figures")
def test_one_machine_has_nothing_beside_it(study: Study, tmp_path: Path) -> None:
    alone = study.other_machines[0]
    with pytest.raises(AnalysisError, match="Only one machine"):
        machine_rows(alone)
    assert "machines" not in {section.id for section in build(alone).sections}
    assert machine_names((alone, alone)) == [f"Apple M4 Pro (Metal) {alone.machine.key[:6]}"] * 2

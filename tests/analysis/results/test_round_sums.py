"""The histogram of accepted tokens is that of the rounds, in numbers, table and figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlsd.analysis.results import frames
from mlsd.analysis.results.round_sums import accepted_counts
from mlsd.analysis.study.study import read_study
from mlsd.measure.store.store import Store
from mlsd.report.tables.results import accepted_table
from tests.analysis.studies import MOE, case, trial, write


def test_rounds_are_counted_by_how_many_tokens_they_accepted(tmp_path: Path) -> None:
    cases = [case(MOE, "code"), case(MOE, "code", 4), case(MOE, "factual", 4), case(MOE, "code", 2)]
    trials = [(one, trial(one, 0, 0, place)) for place, one in enumerate(cases)]
    path = write(tmp_path / "study.sqlite", trials)
    with Store.open(path) as store:
        study = read_study(store)
        frame = frames.trials(store)
    found = {one.gamma: one for one in accepted_counts(study.outcomes, study.trials)}
    assert set(found) == {2, 4}
    for gamma, one in found.items():
        rounds = [r for of, made in trials if of.gamma == gamma for r in made.rounds]
        assert list(one.rounds) == [sum(r.accepted == n for r in rounds) for n in range(len(one.rounds))]
        assert sum(one.rounds) == len(rounds) and sum(one.shares) == pytest.approx(1)
    table = accepted_table(study)
    for row in table.rows:
        assert sum(cell.sort for cell in row[3:] if isinstance(cell.sort, float)) == pytest.approx(100)
    speculative = frame[frame["arm"] == "sd"]
    assert list(speculative["accepted_of_output"]) == pytest.approx(list(1 - 1 / speculative["mgl"]))

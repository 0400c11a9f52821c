"""What predicts acceptance stands beside what was accepted: in a table of the report, one row a drafting model."""

from pathlib import Path

import pytest

from mlsd.analysis.study.study import read_study
from mlsd.errors import AnalysisError
from mlsd.report.tables.methods import distance_table
from mlsd.store.store import Store
from tests.analysis.claims.test_claims import distance
from tests.analysis.pair_studies import Arm, Study, write_study


def test_each_drafting_model_is_one_row_with_its_distance_and_its_acceptance(tmp_path: Path) -> None:
    half = Arm(drafter="layer-skip", draft=None, alpha=1.0, gammas=(2,), options={"mode": "sync", "fraction": 0.5})
    arms = (half, Arm(alpha=0.0, gammas=(4,)), Arm(drafter="pld", draft=None, gammas=(4,)))
    path = write_study(tmp_path / "s.sqlite", Study(arms=arms))
    with Store.open(path) as store:
        cases = {case.drafter.name: case for case in store.cases().values()}
        store.add_distance(distance(cases["layer-skip"], ratio=1.5))
        store.add_distance(distance(cases["draft-model"], ratio=9.0, total_variation=0.9))
        study = read_study(store)
    table = distance_table(study)
    near, far = ({head.label: cell.text for head, cell in zip(table.heads, row, strict=True)} for row in table.rows)
    assert (near["arm"], near["gamma"], near["acceptance"]) == ("layer-skip (fraction 0.5, mode sync)", "2", "100.0 %")
    assert (far["arm"], far["gamma"], far["acceptance"]) == ("small", "4", "0.0 %")
    assert near["perplexity ratio"].startswith("1.50") and far["perplexity ratio"].startswith("9.00")
    assert far["total variation"] == "0.900"


def test_a_study_without_comparisons_says_how_to_make_them(tmp_path: Path) -> None:
    with Store.open(write_study(tmp_path / "s.sqlite", Study())) as store:
        study = read_study(store)
    with pytest.raises(AnalysisError, match="No model that drafts was compared") as caught:
        distance_table(study)
    assert "--distances" in caught.value.hint

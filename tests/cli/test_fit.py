import json
from pathlib import Path

from tests.analysis.pair_studies import Arm, Study, write_study
from tests.cli.conftest import Mlsd

STUDY = Study(arms=(Arm(gammas=(1, 2, 4, 8)), Arm(target="moe", per_row=0.1, gammas=(1, 2, 4, 8))))


def test_fits_are_printed_with_what_they_predict(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", STUDY)
    lines = [" ".join(line.split()) for line in mlsd("fit", "--db", path).out.splitlines()]
    judged = [line for line in lines if line.startswith("dense + small held-out gammas measured-cost")]
    assert len(judged) == 1 and judged[0].endswith("chosen")
    assert any(line.startswith("T(k) of moe, from rounds") for line in lines)
    assert any(line.startswith("every target a whole target held out measured-cost") for line in lines)
    assert "measured-cost: S = MGL / (T_draft + T(g+1) + rest) T(1)" in lines


def test_one_model_as_json(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", STUDY)
    document = json.loads(mlsd("fit", "--db", path, "--target", "moe", "--json").out)
    assert [pair["target"] for pair in document["pairs"]] == ["moe"]
    fits = {fit["model"]: fit for fit in document["pairs"][0]["fits"]}
    assert set(fits) == {"classical", "batch-published", "overhead", "measured-cost"}
    assert set(fits["overhead"]["estimates"]["draft_cost"]) == {"value", "low", "high", "n"}
    assert fits["overhead"]["not_identified"] == []
    assert len(document["arms"]) == 4 and all(arm["decision"] for arm in document["arms"]), "as its session decides"


def test_an_unknown_model_is_refused_with_those_there_are(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", STUDY)
    refused = mlsd("fit", "--db", path, "--target", "x")
    assert refused.code == 2 and "dense, moe" in refused.err

import json
from pathlib import Path

import mlsd as mlsd_library
from mlsd.report.render import terminal
from mlsd.report.tables.equations import equation_table
from mlsd.report.tables.results import model_table
from tests.analysis.pair_studies import Arm, Study, write_study
from tests.cli.conftest import Mlsd

STUDY = Study(arms=(Arm(gammas=(1, 2, 4, 8)), Arm(target="moe", per_row=0.1, gammas=(1, 2, 4, 8))))


def test_fits_are_printed_with_what_they_predict(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", STUDY)
    lines = [" ".join(line.split()) for line in mlsd("results", "--fits", "--db", path).out.splitlines()]
    (best,) = [line for line in lines if line.startswith("dense + small corrected")]
    assert best.endswith("predicts best")
    equations = [line for line in lines if line.startswith("B dense small, gamma 8 rounds")]
    assert len(equations) == 1
    assert "corrected: S = MGL / (T_draft + T(g+1) + rest) T(1)" in lines
    assert not any("T(k) of" in line for line in lines), "no pass was timed"


def test_eighty_columns_keep_what_was_measured_and_predicted(tmp_path: Path) -> None:
    study = mlsd_library.open_study(write_study(tmp_path / "s.sqlite", STUDY))
    shown = terminal.render(equation_table(study.predictions), width=80)
    assert max(map(len, shown.splitlines()[1:5])) <= 80
    assert all(word in shown for word in ("measured speedup", "Eq. 1", "Eq. 2", "corrected", "setting"))
    fits = terminal.render(model_table(study.pair_fits, []), width=80)
    assert all(word in fits for word in ("model", "held-out error", "choice"))


def test_one_model_as_json(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", STUDY)
    document = json.loads(mlsd("results", "--fits", "--db", path, "--target", "moe", "--json").out)
    assert [pair["target"] for pair in document["pairs"]] == ["moe"]
    fits = {fit["model"]: fit for fit in document["pairs"][0]["fits"]}
    assert set(fits) == {"equation 1", "equation 2", "overhead", "corrected"}
    assert set(fits["overhead"]["estimates"]["draft_cost"]) == {"value", "low", "high", "n"}
    assert fits["overhead"]["not_identified"] == []
    assert len(document["arms"]) == 4 and all(arm["decision"] for arm in document["arms"]), "as its session decides"


def test_an_unknown_model_is_refused_with_those_there_are(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", STUDY)
    refused = mlsd("results", "--fits", "--db", path, "--target", "x")
    assert refused.code == 2 and "dense, moe" in refused.err

"""``mlsd calibrate`` through the command line."""

import json
from pathlib import Path

import pytest

from mlsd.cli.commands.calibrate import _why_unreliable
from mlsd.store.rows import WidthExactness
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd

SHORT = ("--n-threads", "1", "--budget-s", "20", "--precision", "10", "--depth", "16", "--rows", "1,2,3,4,5,6,7,8")


def run(mlsd: Mlsd, *arguments: object) -> str:
    ran = mlsd("calibrate", *arguments)
    assert ran.code == 0, ran.err
    return ran.out


def test_json_holds_curves_costs_and_experts(tiny: Path, tmp_path: Path, mlsd: Mlsd) -> None:
    database = tmp_path / "c.sqlite"
    draft = str(tiny / "qwen35moe-noise01.gguf")
    out = run(mlsd, str(tiny / "qwen35moe.gguf"), "--draft", draft, "--db", str(database), "--json", *SHORT)
    printed = json.loads(out)
    (curve,) = printed["curves"]
    assert [row["rows"] for row in curve["passes"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert curve["efficiency"]["1"] == 1.0
    assert {row["kind"] for row in printed["costs"]["draft"]} >= {"draft_step", "rollback", "prefill"}
    rows = {row["window"]: row for row in printed["experts"]["rows"]}
    assert rows[1]["text"] == rows[1]["uniform"] == 4
    assert rows[2]["drafted"] is not None
    assert database.exists()


def test_the_table_says_what_was_found(tiny: Path, tmp_path: Path, mlsd: Mlsd) -> None:
    ran = mlsd("calibrate", tiny / "llama.gguf", "--db", tmp_path / "c.sqlite", *SHORT)
    assert ran.code == 0 and "Loading, and filling contexts: about 2." in ran.err
    assert "T(1)/T(k)" in ran.out
    assert "Experts" not in ran.out


@pytest.mark.slow
def test_a_calibration_where_no_threads_are_given_is_of_those_that_trials_run_on(tmp_path: Path, mlsd: Mlsd) -> None:
    """It was left out of the analysis: "n_threads auto instead of 1"."""
    db = tmp_path / "both.sqlite"
    few = ("--n-predict", 16, "--repeats", 1, "--db", db)
    assert mlsd("bench", "tiny-dense", "--drafter", "pld", "--gamma", 2, *few).code == 0
    assert mlsd("calibrate", "tiny-dense", "--rows", "1,2", "--budget-s", 1, "--depth", 16, "--db", db).code == 0
    audited = mlsd("audit", "study", "--db", db)
    assert audited.code == 0 and "left out" not in audited.out + audited.err


@pytest.mark.parametrize(
    ("half_width", "load", "said"),
    [
        (0.02, 3.8, ""),
        (1.04, 3.8, "+-104.0 %"),
        (1.04, 3.8, "load 3.8"),
        (1.04, 0.9, "quiet machine"),
        (None, 0.1, "not known"),
    ],
)
def test_wide_intervals_are_a_warning_in_place_of_a_conclusion(half_width: float, load: float, said: str) -> None:
    sentence = _why_unreliable(half_width, load)
    assert said in sentence
    assert bool(sentence) == bool(said)
    assert ("Other programs" in sentence) == (bool(said) and load > 1.5)


def test_what_the_budget_left_out_is_named(tiny: Path, tmp_path: Path, mlsd: Mlsd) -> None:
    short = ("--n-threads", "1", "--budget-s", "0.000001", "--depth", "16,24", "--rows", "1,2,3,4,9")
    database = str(tmp_path / "c.sqlite")
    out = run(mlsd, str(tiny / "llama.gguf"), "--db", database, *short)
    assert "Not timed at depth 16 within 1e-06 s: k = 2-4,9." in out
    assert "Not timed at depth 24 within 1e-06 s: k = 1-4,9." in out
    assert "an interval needs three repeats" in out
    assert "loading" in out
    printed = json.loads(run(mlsd, str(tiny / "llama.gguf"), "--db", database, "--json", *short))
    assert printed["not_timed"] == {"16": [2, 3, 4, 9], "24": [1, 2, 3, 4, 9]}
    assert printed["half_width"] is None
    assert printed["spent"]["seconds"]["load"] > 0


def test_the_certificate_of_widths_is_stored_with_the_calibration(tiny: Path, tmp_path: Path, mlsd: Mlsd) -> None:
    database = tmp_path / "c.sqlite"
    asked = ("--n-threads", "1", "--budget-s", "2", "--depth", "16", "--rows", "1,2,5", "--json")
    exactness = json.loads(run(mlsd, str(tiny / "llama.gguf"), "--db", str(database), *asked))["exactness"]
    with Store.open(database, read_only=True) as store:
        stored = [width for _, width in store.figures(WidthExactness)]
        assert {width.model_key for width in stored} <= set(store.models())
    assert [width.rows for width in stored] == [width["rows"] for width in exactness] == [2, 5]
    measured = ("--drafter", "pld", "--gamma", "8", "--prompt", "copy", "--n-predict", "24", "--repeats", "1")
    out = mlsd("bench", tiny / "llama.gguf", *measured, "--n-threads", "1", "--db", database).out
    assert "none as wide as 9 rows was compared" in out, "a method beyond what was shown is told so"
    assert "Of llama, passes of " in mlsd("results", "--db", database).out
    asked_of = ("--drafter", "pld", "--gamma", "4", "--mgl", "4.9", "--n-threads", "1")
    advice = mlsd("advise", tiny / "llama.gguf", *asked_of, "--db", database)
    assert "Of llama, passes of " in advice.out, advice.out + advice.err


PARTS = ("--n-threads", "1", "--repeats", "1", "--depth", "16", "--rows", "1,3", "--n-predict", "16")


def test_json_holds_shares_with_their_checks_and_the_parts_of_a_plain_round(mlsd: Mlsd, tiny: Path) -> None:
    ran = mlsd(
        "calibrate", "parts", tiny / "qwen35moe.gguf", "--draft", tiny / "qwen35moe-noise01.gguf", "--json", *PARTS
    )
    assert ran.code == 0, ran.err
    printed = json.loads(ran.out)
    assert printed["profiling"] is True
    assert [one["record"]["rows"] for one in printed["shares"]] == [1, 3, 1]
    assert all(one["inflation"] > 0 and one["agreement"] > 0 for one in printed["shares"])
    inside = printed["rounds"]["inside_ms"]
    ours, theirs = sorted(inside["rollback"])
    assert ours.startswith("draft's ") and theirs.startswith("target's ")
    assert inside["draft"]["draft forward"] <= printed["rounds"]["ms_per_round"]["draft"]


def test_the_tables_name_parts_and_say_that_this_is_profiling(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    database = tmp_path / "b.sqlite"
    ran = mlsd("calibrate", "parts", tiny / "llama.gguf", "--drafter", "pld", "--gamma", 3, "--db", database, *PARTS)
    assert ran.code == 0, ran.err
    for word in ("LM head", "attention", "look-up", "with a proposal", "target's trim"):
        assert word in ran.out
    assert "recurrent" not in ran.out  # the network has no such part
    assert "Loading, and checking how pld rolls back: about 2." in ran.err
    assert "PROFILING" in ran.err and "no speeds" in ran.err
    assert database.exists()

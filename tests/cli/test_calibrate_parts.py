"""``mlsd calibrate --parts`` through the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Mlsd

SHORT = ("--n-threads", "1", "--repeats", "1", "--depth", "16", "--rows", "1,3", "--n-predict", "16")


def test_json_holds_shares_with_their_checks_and_the_parts_of_a_plain_round(mlsd: Mlsd, tiny: Path) -> None:
    ran = mlsd(
        "calibrate", "--parts", tiny / "qwen35moe.gguf", "--draft", tiny / "qwen35moe-noise01.gguf", "--json", *SHORT
    )
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["profiling"] is True
    assert [one["record"]["rows"] for one in found["shares"]] == [1, 3, 1]
    for one in found["shares"]:
        assert sum(share for share in one["shares"].values() if share) == pytest.approx(1)
        assert one["inflation"] > 0 and one["agreement"] > 0
    rounds = found["rounds"]
    assert set(rounds["ms_per_round"]) == {"draft", "verify", "rollback", "sample", "other"}
    assert set(rounds["inside_ms"]["draft"]) == {"draft forward"}
    ours, theirs = sorted(rounds["inside_ms"]["rollback"])
    assert ours.startswith("draft's ") and theirs.startswith("target's ")
    assert rounds["inside_ms"]["draft"]["draft forward"] <= rounds["ms_per_round"]["draft"]


def test_the_tables_name_parts_and_say_that_this_is_profiling(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    database = tmp_path / "b.sqlite"
    ran = mlsd("calibrate", "--parts", tiny / "llama.gguf", "--drafter", "pld", "--gamma", 3, "--db", database, *SHORT)
    assert ran.code == 0, ran.err
    for word in ("LM head", "attention", "look-up", "with a proposal", "target's trim"):
        assert word in ran.out
    assert "recurrent" not in ran.out  # the network has no such part
    assert "PROFILING" in ran.err and "no speeds" in ran.err
    assert database.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "0,1"), "positive"),
        (("--drafter", "mtp"), "mtp was shown to be exact on qwen35"),
        (("--drafter", "layer-skip:exit=99"), "99"),
        (("--drafter", "pld", "--n-predict", "1"), "must be from 2"),
        (("--depth", "9000"), "--depth"),
        (("--prompt", "nothing", "--drafter", "pld"), "nothing"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(mlsd: Mlsd, tiny: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = mlsd("calibrate", "--parts", tiny / "llama.gguf", "--n-threads", 1, *arguments)
    assert ran.code == 2
    assert message in ran.err

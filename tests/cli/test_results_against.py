"""``mlsd results against`` through the command line."""

import json
from pathlib import Path

import msgspec
import pytest

from tests.analysis.studies import MACHINE, MOE, blocks, write
from tests.cli.conftest import Mlsd

TRIALS = blocks(MOE, gammas=(4,), prompts=("code",))


def test_the_command_prints_both_plain_speeds_and_how_far_apart_they_were(mlsd: Mlsd, tmp_path: Path) -> None:
    later = [
        (of, msgspec.structs.replace(arm, started_at=arm.started_at.replace("-01T", "-04T"))) for of, arm in TRIALS
    ]
    new = write(tmp_path / "new.sqlite", later)
    machine = msgspec.structs.replace(MACHINE, llama_cpp_build="b8000")
    old = write(tmp_path / "old.sqlite", TRIALS, machine)
    asked = ("results", "against", str(old), "--db", str(new))
    shown, printed = mlsd(*asked, "--wide").out, json.loads(mlsd(*asked, "--json").out)
    for part in ("plain new/old", "1.00", "Measured apart, 3.0 days", "llama.cpp build b8240 instead of b8000"):
        assert part in shown
    for arm in printed["arms"]:
        if arm["setting"] != "plain":
            assert f"{arm['plain_tok_s']:.1f}" in shown and f"{arm['plain_tok_s_before']:.1f}" in shown


@pytest.mark.parametrize("kind", ["missing", "no database", "empty", "itself"])
def test_a_file_that_is_no_earlier_study_ends_with_2(mlsd: Mlsd, tmp_path: Path, kind: str) -> None:
    new, old = write(tmp_path / "new.sqlite", TRIALS), tmp_path / "old.sqlite"
    if kind == "no database":
        old.write_bytes(b"no database" * 500)
    elif kind == "empty":
        old.touch()
    ran = mlsd("results", "against", str(new if kind == "itself" else old), "--db", str(new))
    assert ran.code == 2 and ran.err and "Traceback" not in ran.err

"""``mlsd advise`` through the command line."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.advise import ask
from mlsd.analysis.advise.answer import TargetAdvice
from mlsd.engine.llama.build.prebuilt import A_MAC, installed_build
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd

TRIALS = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"


def test_the_text_says_plain_decoding_is_among_the_choices_and_how_far_to_trust_it(mlsd: Mlsd) -> None:
    out = mlsd("advise", "tiny-moe", "--chip", "68 GB/s").out
    for words in ("plain", "decided by", "not measured", "90 % of public rows", "Next: "):
        assert words in out


def test_an_open_question_ends_in_commands_and_a_decided_one_in_flags(mlsd: Mlsd) -> None:
    asked = ["advise", "qwen3.5-27b", "--quant", "q4_k_m", "--chip", "M4 Max", "--drafter"]
    out = mlsd(*asked, "pld").out
    for words in ("not decided yet; pld at gamma", "pays above", "The biggest unknown is", "mlsd bench qwen3.5-27b"):
        assert words in out
    assert "--spec-type" not in out and "leave it off" not in out
    out = mlsd(*asked, "mtp", "--llama-build", "11524", "--gamma", "4", "--acceptance", "0.95").out
    assert "use mtp at gamma 4" in out and "--spec-type draft-mtp" in out
    assert "llama.cpp b11524" in out and "95% as stated, accepted over proposed tokens: MGL 4.80 at gamma 4" in out
    out = mlsd(*asked, "mtp", "--llama-build", "11524", "--gamma", "16", "--accepted", "1/160").out
    assert "leave it off: nothing that is known is faster" in out and "llama-server: leave it off" in out
    assert "Assuming Q8_0 for qwen3.5-9b" in mlsd("advise", "qwen3.5-9b", "--chip", "M2 Ultra").out
    assert re.search(r"Memory: \d+\.\d\d GB of weights; a Mac with \d+ GB lets models use \d+\.\d\d GB, contexts", out)


@pytest.mark.parametrize("rate", ["0.75", "75%", "75"])
def test_an_acceptance_may_be_given_in_per_cent(mlsd: Mlsd, rate: str) -> None:
    asked = ("advise", "qwen3.5-9b-q4_k_m", "--chip", "M4", "--drafter", "mtp", "--gamma", "2")
    assert "75% as stated" in mlsd(*asked, "--acceptance", rate).out


def test_another_mac_runs_the_build_that_set_up_installs_there(mlsd: Mlsd) -> None:
    asked = ["advise", "qwen3.5-27b-q4_k_m", "--chip", "M2 Ultra", "--drafter", "mtp", "--workload", "code"]
    told = [mlsd(*asked, *build).out for build in ((), ("--llama-build", str(installed_build(A_MAC))))]
    assert told[0] == told[1] and "use mtp at gamma 4 (1." in told[0]
    assert re.search(r"decides; mtp at gamma 16, at 2\.\d+ \(1\.0.*\), is tested by no public row\.", told[0])


def test_what_is_left_open_is_measured_and_asked_again(mlsd: Mlsd, monkeypatch: pytest.MonkeyPatch) -> None:
    modelled = ask.advise("tiny-moe", drafts=("tiny-draft",), gammas=(1, 2), chip="68 GB/s")
    open_ = tuple(p for p in modelled.recommendation.prospects if p.gamma)
    recommendation = msgspec.structs.replace(modelled.recommendation, to_measure=open_)
    asked: list[tuple[Path, ...]] = []

    def advise(*_: object, db: tuple[Path, ...], **__: object) -> TargetAdvice:
        asked.append(tuple(db))
        return msgspec.structs.replace(modelled, recommendation=recommendation)

    monkeypatch.setattr(ask, "advise", advise)
    ran = mlsd("advise", "tiny-moe", "--measure", "--budget-s", "1", "--n-threads", "1")
    assert ran.code == 0, ran.err
    assert "Measured on code: " in ran.err
    assert asked == [(), (Path("results/bench.sqlite"),)]
    with Store.open(Path("results/bench.sqlite"), read_only=True) as store:
        assert {case.gamma for case in store.cases().values()} == {0, 1, 2}


def test_databases_of_others_in_the_results_folder_are_passed_over(mlsd: Mlsd) -> None:
    Path("results").mkdir()
    with closing(sqlite3.connect("results/tune.sqlite")) as other:
        other.execute("CREATE TABLE studies (id)")
    ran = mlsd("advise", "qwen3-8b", "--chip", "M2 Ultra")
    assert ran.code == 0
    assert ran.err == ""

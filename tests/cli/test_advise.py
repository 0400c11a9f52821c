"""``mlsd advise`` through the command line."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.advise import ask
from mlsd.analysis.advise.answer import AdvisedMachine, TargetAdvice
from mlsd.engine.llama.build.prebuilt import A_MAC, installed_build
from mlsd.hardware.apple_passes import Runtime, apple_chip, unnamed_chip
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd

TRIALS = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"


def test_the_text_says_plain_decoding_is_among_the_choices_and_how_far_to_trust_it(mlsd: Mlsd) -> None:
    out = mlsd("advise", "tiny-moe", "--chip", "68 GB/s").out
    for part in ("plain", "decided by", "not measured", "90 % of public rows", "Next: "):
        assert part in out


def test_an_open_question_ends_in_commands_and_a_decided_one_in_flags(mlsd: Mlsd) -> None:
    asked = ["advise", "qwen3.5-27b", "--quant", "q4_k_m", "--chip", "M4 Max", "--drafter"]
    out = mlsd(*asked, "pld").out
    for part in (
        "not decided yet",
        "pld at gamma",
        "pays from an acceptance of",
        "The biggest unknown is",
        "mlsd bench qwen3.5-27b",
    ):
        assert part in out
    assert "--spec-type" not in out and "leave it off" not in out
    out = mlsd(*asked, "mtp", "--llama-build", "11524", "--gamma", "4", "--acceptance", "0.95").out
    assert "use mtp at gamma 4" in out and "--spec-type draft-mtp" in out
    assert "llama.cpp b11524" in out and "95% as stated, accepted over proposed tokens: MGL 4.80 at gamma 4" in out
    out = mlsd(*asked, "mtp", "--llama-build", "11524", "--gamma", "16", "--accepted", "1/160").out
    assert "leave it off: nothing that is known is faster" in out and "llama-server: leave it off" in out
    assert "Assuming Q8_0 for qwen3.5-9b" in mlsd("advise", "qwen3.5-9b", "--chip", "M2 Ultra").out
    assert re.search(r"Memory: \d+\.\d\d GB of weights; such a Mac with \d+ GB lets models use \d+\.\d\d GB", out)


def test_a_method_that_is_not_predicted_is_named_and_a_typo_gets_the_nearest_name(mlsd: Mlsd) -> None:
    for name in ("rest", "lookahead", "layer-skip", "kangaroo", "oracle"):
        ran = mlsd("advise", "qwen3-8b-q4_k_m", "--chip", "M4", "--drafter", name)
        assert ran.code == 2 and f"What {name} drafts is not predicted" in ran.err
        assert f"mlsd bench qwen3-8b-q4_k_m --drafter {name}" in ran.err
    ran = mlsd("advise", "qwen3-8b-q4_k_m", "--chip", "M4", "--drafter", "ngram-cach")
    assert ran.code == 2 and "Did you mean ngram-cache" in ran.err
    ran = mlsd("advise", "qwen3-8b-q4_k_m", "--chip", "M4", "--draft", "unheard-of-q4_k_m")
    assert ran.code == 2 and "unheard-of-27b-q4_k_m" in ran.err and "q4_k_m-27b" not in ran.err


def test_a_database_that_holds_none_of_the_models_is_named(mlsd: Mlsd) -> None:
    """The answer was the same with it as without, and nothing was said of it."""
    asked = ("advise", "qwen3.5-9b", "--chip", "M2 Ultra", "--gamma", 4)
    said = f"{TRIALS}: nothing was measured there of qwen3.5-9b"
    assert said in mlsd(*asked, "--db", TRIALS).err and "nothing was measured" not in mlsd(*asked).err
    assert "nothing was measured" not in mlsd("advise", "tiny-moe", "--chip", "M2 Ultra", "--db", TRIALS).err


def test_an_option_that_would_change_nothing_is_refused_and_a_method_is_no_target(mlsd: Mlsd) -> None:
    here, chip = ("advise", "tiny-dense", "--quant", "q4_k_m"), ("--chip", "M4 Pro")
    for asked, expected in (
        (here, "a file on this machine, in the quantization that it has"),
        ((*here, *chip), "a file on this machine, in the quantization that it has"),
        (("advise", "qwen3-8b-q8_0", "--quant", "q4_k_m", *chip), "qwen3-8b-q8_0 is in Q8_0 by its name"),
        (("advise", "rest", *chip), "rest is a drafting method, not a model"),
        (("advise", "qwen3-8b-q8_0", "--chip", "M3 Max CPU"), "on its CPU is not modelled"),
        (("advise", "qwen3.5-9b-q8_0", "--draft", "qwen2.5-0.5b-q8_0", *chip), "they share no vocabulary"),
        (("advise", "tiny-dense", "--draft", "tiny-draft"), "mlsd calibrate tiny-dense --draft tiny-draft"),
    ):
        ran = mlsd(*asked)
        assert ran.code == 2 and expected in ran.err, ran.err


def test_drafts_that_p_min_ends_are_asked_with_the_length_of_their_answer(mlsd: Mlsd) -> None:
    asked = ("advise", "qwen3-8b-q8_0", "--chip", "M4 Pro", "--gamma", "16", "--accepted", "168/226", "--drafter")
    drafter = "draft-model:draft=qwen3-0.6b-q8_0,p_min=0.75"
    alone = mlsd(*asked, drafter).out
    assert "226 as stated, accepted over proposed tokens; drafts as long as public rows" in alone
    assert "The biggest unknown is the length of drafts: give --output-tokens" in alone
    out = mlsd(*asked, drafter, "--output-tokens", "256").out
    assert "2.57 proposed a round as stated" in out and "qwen3-0.6b-q8_0 (p_min 0.75)" in out


def test_next_names_files_of_models_that_no_list_holds_and_pulls_the_others(mlsd: Mlsd) -> None:
    asked = ("--chip", "M4 Pro", "--gamma", "4", "--draft")
    out = mlsd("advise", "qwen2.5-32b-q8_0", *asked, "qwen2.5-0.5b-q8_0").out
    bench = "mlsd models pull qwen2.5-0.5b-q8_0 && mlsd bench qwen2.5-32b-q8_0.gguf --draft qwen2.5-0.5b-q8_0 --gamma 4"
    assert f"{bench} (the paths of those files there)" in out
    out = mlsd("advise", "qwen3.5-27b-q8_0", *asked, "qwen3.5-0.8b-q8_0").out
    assert "mlsd models pull qwen3.5-27b-q8_0 qwen3.5-0.8b-q8_0 && mlsd bench qwen3.5-27b-q8_0 --draft" in out
    unsure = ("advise", "qwen2.5-7b-q4_k_m", "--chip", "M3 Max", "--drafter", "pld", "--gamma", "4")
    source = "by --llama-build: kernels changed at b11404"
    assert source in mlsd(*unsure).out and source not in mlsd(*unsure, "--llama-build", "11524").out


def test_the_memory_counts_the_draft_and_names_macs_that_were_sold(mlsd: Mlsd) -> None:
    out = mlsd("advise", "qwen3-8b-q4_k_m", "--chip", "M4 Pro", "--draft", "qwen3-32b-q8_0").out
    assert "of weights, qwen3-32b-q8_0's included; such a Mac with 64 GB" in out
    alone = mlsd("advise", "qwen3-8b-q4_k_m", "--chip", "M4 Pro", "--drafter", "pld").out
    assert "such a Mac with 24 GB" in alone, "no M4 Pro was sold with 8 GB"
    small = mlsd("advise", "qwen2.5-32b-q8_0", "--chip", "M4 Max 36GB", "--drafter", "pld").out
    assert "a Mac with 36 GB lets models use 28.99 GB" in small and "410 GB/s" in small


def test_a_runtime_or_a_depth_is_modelled_on_a_known_chip_and_refused_elsewhere(
    mlsd: Mlsd, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = mlsd("advise", "tiny-moe", "--depth", "32000", "--budget-s", "3")
    assert ran.code == 2 and "--budget-s: only for --measure" in ran.err
    ran = mlsd("advise", "tiny-moe", "--runtime", "mlx", "--measure")
    assert ran.code == 2 and "--measure times llama.cpp, not mlx" in ran.err and "mlsd server URL" in ran.err
    monkeypatch.setattr(ask, "_here", lambda *_: AdvisedMachine(environment_key="here"))
    for option in (("--depth", "32000"), ("--runtime", "mlx")):
        ran = mlsd("advise", "qwen3-8b-q4_k_m", *option)
        assert ran.code == 2 and "this machine has none that is known" in ran.err
        assert ("mlsd server URL" if "mlx" in option else "mlsd bench qwen3-8b-q4_k_m --depth 32000") in ran.err
    chip = Runtime(chip=apple_chip("M4 Pro") or unnamed_chip(273))
    monkeypatch.setattr(ask, "_here", lambda *_: AdvisedMachine(environment_key="here", runtime=chip))
    asked = ("advise", "qwen3-8b-q4_k_m", "--drafter", "pld", "--runtime", "mlx", "--depth", "32000", "--gamma", "4")
    here, other = mlsd(*asked).out, mlsd(*asked, "--chip", "M4 Pro").out
    assert _table(here) == _table(other) != ""


def _table(out: str) -> str:
    return "\n".join(line for line in out.splitlines() if line.startswith((" pld", " plain")))


@pytest.mark.parametrize("rate", ["0.75", "75%", "75"])
def test_an_acceptance_may_be_given_in_per_cent(mlsd: Mlsd, rate: str) -> None:
    asked = ("advise", "qwen3.5-9b-q4_k_m", "--chip", "M4", "--drafter", "mtp", "--gamma", "2")
    assert "75% as stated" in mlsd(*asked, "--acceptance", rate).out


def test_another_mac_runs_the_build_that_set_up_installs_there(mlsd: Mlsd) -> None:
    asked = ["advise", "qwen3.5-27b-q4_k_m", "--chip", "M2 Ultra", "--drafter", "mtp", "--workload", "code"]
    answers = [mlsd(*asked, *build).out for build in ((), ("--llama-build", str(installed_build(A_MAC))))]
    assert answers[0] == answers[1] and "use mtp at gamma 4 (1." in answers[0]
    assert re.search(r"decides; mtp at gamma 16, at 2\.\d+ \(1\.0.*\), is tested by no public row\.", answers[0])


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

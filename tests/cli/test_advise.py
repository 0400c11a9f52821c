"""``mlsd advise`` through the command line."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from mlsd import api
from mlsd.analysis.advise.answer import Answer
from mlsd.cli import main
from mlsd.measure.store.store import Store
from tests.cli.conftest import Ran

TRIALS = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"


def test_a_large_model_is_predicted_for_a_chip_without_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["advise", "qwen3.5-35b-a3b", "--chip", "M2 Ultra", "--json"])
    found = json.loads(capsys.readouterr().out)
    advice = found["advice"]
    assert {p["gamma"] for p in advice["prospects"]} == {0, 1, 2, 4, 8, 16}
    off = next(p for p in advice["prospects"] if p["gamma"] == 0)
    assert off["tok_s"]["value"] == pytest.approx(49.9, rel=0.15)  # as published, Q8_0
    assert "other half" in found["chip"]
    assert found["validation"] is None
    speculative = [p for p in advice["prospects"] if p["gamma"]]
    assert {p["draft"] for p in speculative} == {"qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", None}
    for p in speculative:
        assert p["tok_s"]["low"] < p["tok_s"]["value"] < p["tok_s"]["high"]
        assert p["acceptance_assumed"] == (p["draft"] != "qwen3.5-0.8b")
    assert "modelled" in advice["costs_source"]
    assert advice["level"] == 0.9 and advice["verdict"] in ("faster", "slower", "measure")


def test_the_text_says_plain_decoding_is_among_the_choices_and_how_far_to_trust_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["advise", "tiny-moe", "--chip", "68 GB/s"])
    out = capsys.readouterr().out
    for words in ("plain", "decided by", "not measured", "public rows", "90 % interval", "Next: "):
        assert words in out


def test_another_chip_is_not_judged_by_the_trials_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    database = shutil.copy(TRIALS, tmp_path)
    main(["advise", "tiny-moe", "--db", database])
    out = capsys.readouterr().out
    assert "stored settings" in out
    main(["advise", "tiny-moe", "--db", database, "--chip", "M2 Ultra"])
    out = capsys.readouterr().out
    assert "stored settings" not in out
    assert "--spec-draft-model tiny-draft" not in out


def test_a_head_is_answered_for_on_a_chip_of_two_bins(capsys: pytest.CaptureFixture[str]) -> None:
    main(["advise", "qwen3.5-35b-a3b-q8_0", "--chip", "M5 Max", "--drafter", "mtp"])
    out = capsys.readouterr().out
    assert "614 GB/s of an M5" in out and "public rows of mtp" in out
    assert "too few repeats" not in out  # of a prediction there are none
    main(["advise", "qwen3.5-35b-a3b-q8_0", "--chip", "M5 Max", "--drafter", "mtp", "--runtime", "mlx"])
    assert "for mlx on 614 GB/s" in capsys.readouterr().out


def test_an_open_question_ends_in_commands_and_a_decided_one_in_flags(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["advise", "qwen3.5-27b-q4_k_m", "--chip", "M4 Max", "--drafter"]
    main([*asked, "pld"])
    out = capsys.readouterr().out
    assert "open" in out and "mlsd bench qwen3.5-27b-q4_k_m --drafter pld" in out and "--spec-type" not in out
    assert "before b11404" in out and "narrows it most" in out
    main([*asked, "mtp", "--llama-build", "11524", "--acceptance", "0.95"])
    out = capsys.readouterr().out
    assert "faster with mtp" in out and "--spec-type draft-mtp" in out
    assert "llama.cpp b11524" in out and "as stated with --acceptance" in out


def test_the_quantization_that_is_meant_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["advise", "qwen3.5-9b-mtp-q4_k_m", "--chip", "M2 Ultra"])
    assert "Bytes of qwen3.5-9b-mtp-q4_k_m: Q4_K_M." in capsys.readouterr().out


def test_a_calibration_is_enough_for_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = [
        "--n-threads",
        "1",
        "--budget-s",
        "20",
        "--precision",
        "10",
        "--depth",
        "16",
        "--rows",
        "1,2,3,5",
        "--no-coverage",
    ]
    main(["calibrate", "tiny-moe", "--draft", "tiny-draft", *short])
    capsys.readouterr()
    main(["advise", "tiny-moe", "--gamma", "1,2,4", "--n-threads", "1", "--json"])
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert advice["costs_source"] == "calibration on this machine"
    assert {(p["draft"], p["gamma"]) for p in advice["prospects"]} == {
        (None, 0),
        ("tiny-draft", 1),
        ("tiny-draft", 2),
        ("tiny-draft", 4),
    }


def test_what_is_left_open_is_measured_and_asked_again(
    mlsd: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    modelled = api.advise("tiny-moe", drafts=("tiny-draft",), gammas=(1, 2), chip="68 GB/s")
    open_ = tuple(p for p in modelled.recommendation.prospects if p.gamma)
    recommendation = msgspec.structs.replace(modelled.recommendation, to_measure=open_)
    asked: list[tuple[Path, ...]] = []

    def advise(*_: object, databases: tuple[Path, ...], **__: object) -> Answer:
        asked.append(tuple(databases))
        return msgspec.structs.replace(modelled, recommendation=recommendation)

    monkeypatch.setattr(api, "advise", advise)
    ran = mlsd("advise", "tiny-moe", "--measure", "--budget-s", "1", "--n-threads", "1")
    assert ran.code == 0, ran.err
    assert "Measured on code: " in ran.err
    assert asked == [(), (Path("results/bench.sqlite"),)]
    with Store.open(Path("results/bench.sqlite"), read_only=True) as store:
        assert {case.gamma for case in store.cases().values()} == {0, 1, 2}
    elsewhere = mlsd("advise", "tiny-moe", "--measure", "--chip", "M2 Ultra")
    assert elsewhere.code == 2 and "another" in elsewhere.err


@pytest.mark.heavy
def test_own_trials_and_a_calibration_in_one_database_give_advice_on_every_gamma(
    mlsd: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = ("--n-threads", "1", "--db", "study.sqlite")
    ran = mlsd(
        "run", "B", "--profile", "tiny", "--draft", "tiny-draft", "--gamma", "1,2,4", "--prompt", "code",
        "--prompt", "factual", "--repeats", "2", "--n-predict", "64", *one,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    short = ("--budget-s", "20", "--precision", "10", "--rows", "1,2,3,5,9", "--no-coverage")
    assert mlsd("calibrate", "tiny-moe", "--draft", "tiny-draft", *short, *one).code == 0
    found = json.loads(mlsd("advise", "tiny-moe", "--gamma", "1,2,4,8", *one, "--json").out)
    advice = found["advice"]
    assert advice["costs_source"] == "calibration of this machine, scaled to its own trials"
    rows = {(p["draft"], p["gamma"]): p for p in advice["prospects"]}
    assert set(rows) == {(None, 0), *(("tiny-draft", gamma) for gamma in (1, 2, 4, 8))}
    with Store.open(tmp_path / "study.sqlite", read_only=True) as store:
        moe = {key for key, case in store.cases().items() if case.target.id == "tiny-moe"}
        trials = [t.trial for t in store.trials() if t.trial.case_id in moe]
    for (_, gamma), p in rows.items():
        assert p["tok_s"]["low"] < p["tok_s"]["value"] < p["tok_s"]["high"]
        measured = [t for t in trials if t.gamma == gamma]
        if measured:  # as it was measured: the mean time of a token over all of them
            seconds = sum(t.decode_ns or 0 for t in measured) / 1e9
            measured_tok_s = sum(len(t.tokens) - 1 for t in measured) / seconds
            assert 0.5 < p["tok_s"]["value"] / measured_tok_s < 2  # a busy machine may slow one of the two
            rounds = [r for t in measured for r in t.rounds]
            assert p["mgl"] == pytest.approx(sum(r.committed for r in rounds) / len(rounds), rel=0.02)
        if gamma:
            assert p["decided_by"] != "nothing"
            assert p["break_even_alpha"] is None or 0 <= p["break_even_alpha"] <= 1
    validation = found["validation"]
    assert validation["n"] == 12  # three gammas on two prompts of two targets
    assert validation["n_calibrated"] == 6
    text = mlsd("advise", "tiny-moe", *one).out
    for words in (
        "Each of 12 stored settings predicted on the same text",
        "decided by",
        "plain",
        "Acceptance of tiny-draft: ",
    ):
        assert words in text


@pytest.mark.heavy
def test_a_user_without_any_download_learns_what_to_fetch(
    mlsd: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = ("--n-threads", "1")
    lost = mlsd("advise", "qwen3.5-4b-q4_0", *one)
    assert "mlsd models make synth qwen3.5-4b --quant Q4_0 -o 4b.gguf" in lost.out + lost.err
    if lost.code:  # the peak of this machine's memory is not known
        assert lost.code == 2
        assert "mlsd models make synth qwen3.5-0.8b" in lost.err
    for shape, layers in (("qwen3.5-4b", 2), ("qwen3.5-0.8b", 2)):
        assert mlsd("models", "make", "synth", shape, "--quant", "Q4_0", "--layers", layers, "-o", "m.gguf").code == 0
        ran = mlsd("calibrate", "m.gguf", "--budget-s", "1.5", "--rows", "1,2,5", "--depth", "16", *one)
        assert ran.code == 0, ran.err
        Path("m.gguf").unlink()
    found = json.loads(mlsd("advise", "qwen3.5-4b-q4_0", "--gamma", "1,4", *one, "--json").out)
    advice = found["advice"]
    assert advice["costs_source"] == "Q4_0, 2 of 32 layers timed on this machine, scaled to all"
    assert "2 of 24 layers" in found["draft_sources"]["qwen3.5-0.8b"]
    rows = {(p["draft"], p["gamma"]): p for p in advice["prospects"]}
    assert set(rows) == {(None, 0), ("qwen3.5-0.8b", 1), ("qwen3.5-0.8b", 4)}
    assert advice["best"]["gamma"] == 0  # acceptance of that pair is only assumed
    for (_, gamma), p in rows.items():
        assert p["acceptance_assumed"] == bool(gamma)
        assert p["speedup"]["high"] <= (gamma + 1) * 3
    files = {q["id"]: q for q in found["quants"]}
    assert {"qwen3.5-4b-q8_0", "qwen3.5-4b-q4_k_m"} <= set(files)
    assert all(q["off_tok_s"] is None for q in files.values())  # Q4_0 was timed, which is none of these
    text = mlsd("advise", "qwen3.5-4b-q4_0", *one).out
    for words in (
        "Files to fetch",
        "assumed: 45 to 89 %",
        "or accept",
        "make synth qwen3.5-4b --quant Q8_0",
    ):
        assert words in text


def test_databases_of_others_in_the_results_folder_are_passed_over(
    mlsd: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    with closing(sqlite3.connect("results/tune.sqlite")) as other:
        other.execute("CREATE TABLE studies (id)")
    ran = mlsd("advise", "qwen3.5-35b-a3b", "--chip", "M2 Ultra")
    assert ran.code == 0
    assert ran.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-model", "--chip", "M2 Ultra"), "no-such-model"),
        (("tiny-moe", "--chip", "M9 Hyper"), "no chip of that name"),
        (("tiny-moe", "--chip", "M9 Max"), "no chip of that name"),
        (("tiny-moe", "--chip", "-3"), "impossible"),
        (("tiny-moe", "--gamma", "0", "--chip", "M1"), "at least 1"),
        (("tiny-moe", "--draft", "other", "--chip", "M1"), "Nothing is known of other"),
    ],
)
def test_what_cannot_be_advised_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["advise", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err

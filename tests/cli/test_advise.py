"""``mlsd advise`` through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlsd.cli import main


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
    assert "each left out" in found["chip"]
    assert found["validation"] is None


def test_the_text_says_off_is_among_the_choices_and_how_far_to_trust_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["advise", "tiny-moe", "--chip", "68 GB/s"])
    out = capsys.readouterr().out
    for words in ("off", "decided by", "not checked", "not validated on that machine", "Next: "):
        assert words in out


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
        "--widths",
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-model", "--chip", "M2 Ultra"), "no-such-model"),
        (("tiny-moe", "--chip", "M9 Hyper"), "not in the table"),
        (("tiny-moe", "--chip", "M3 Max"), "core counts"),
        (("tiny-moe", "--chip", "-3"), "impossible"),
        (("tiny-moe", "--gamma", "0", "--chip", "M1"), "at least 1"),
        (("tiny-moe", "--drafts", "other", "--chip", "M1"), "Nothing is known of other"),
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

"""Files that somebody hands over: no pipe, no device, no depth and no number takes the program down."""

import os
import resource
import tomllib
from pathlib import Path

import pytest

from mlsd import outside
from mlsd.outside import check_regular, output_of, parse_toml, read_file
from tests.cli.conftest import (
    Mlsd,
    mlsd,  # noqa: F401 - a fixture
)
from tests.processes import alive

ROOT = Path(__file__).parents[1]


def test_what_is_no_regular_file_is_refused_unopened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"regular file|directory"):
            check_regular(path)


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big").write_bytes(b"x" * 100)
    assert read_file(tmp_path / "big") == b"x" * 100
    monkeypatch.setattr("mlsd.outside.MOST_FILE_BYTES", 99)
    with pytest.raises(OSError, match="larger than 99 bytes"):
        read_file(tmp_path / "big")


def test_a_file_is_read_as_far_as_it_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like /proc/kmsg: a regular file of 0 bytes, whose end never comes."""
    (tmp_path / "endless").write_bytes(b"x" * 100)
    monkeypatch.setattr(outside, "check_regular", lambda _: 0)
    assert read_file(tmp_path / "endless") == b""


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--dry-run", "{pipe}.toml"),
        ("run", "--dry-run", "B", "--profile", "{pipe}.toml"),
        ("audit", "{pipe}.csv"),
        ("run", "B", "--profile", "tiny", "--tasks", "{pipe}.jsonl", "--dry-run"),
        ("run", "B", "--profile", "tiny", "--tasks", "{pipe}.parquet", "--dry-run"),
        ("bench", "tiny-dense", "--drafter", "pld", "--prompt", "{pipe}.txt"),
        ("models", "make", "synth", "{pipe}.json", "-o", "x.gguf"),
        ("models", "make", "noise", "{pipe}.gguf", "--noise", "0.1", "-o", "x.gguf"),
        ("record", "check", "{pipe}.record.gz"),
        ("report", "--db", "{pipe}.sqlite"),
        ("lab", "join", "127.0.0.1:1", "--certificate", "{pipe}.pem"),
        ("record", "check", "/dev/zero"),
        ("audit", "/dev/zero"),
        ("record", "import", "/dev/zero", "--into", "x.sqlite"),
    ],
)
def test_a_pipe_or_a_device_as_a_file_is_one_message(mlsd: Mlsd, words: tuple[str, ...], tmp_path: Path) -> None:  # noqa: F811
    given = [word.format(pipe=tmp_path / "pipe") for word in words]
    for word in given:
        if word.startswith(str(tmp_path)):
            os.mkfifo(word)
    refused = mlsd(*given)
    assert refused.code == 2 and "\nError: " in f"\n{refused.err}", refused


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{b=" * 50_000,
        "a = " + "9" * 5_000,
        f"a = {2**70}",
        "a = nan",
        "a = [[{b = -inf}]]",
        ".".join("a" * 5_000) + " = 1",
    ],
)
def test_toml_beyond_all_use_is_not_valid(text: str, tmp_path: Path, mlsd: Mlsd) -> None:  # noqa: F811
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text.encode())
    suite = tmp_path / "s.toml"
    suite.write_text(text)
    refused = mlsd("run", "--dry-run", suite, "--profile", "tiny")
    assert refused.code == 2 and "is not valid TOML" in refused.err


def test_a_plan_beyond_the_limit_is_refused_before_it_is_made(tmp_path: Path, mlsd: Mlsd) -> None:  # noqa: F811
    suite = tmp_path / "s.toml"
    text = (ROOT / "suites" / "b.toml").read_text(encoding="utf-8")
    suite.write_text(text.replace("gammas = [", f"gammas = [{', '.join(['1'] * 50_000)}, ", 1))
    refused = mlsd("run", "--dry-run", suite, "--profile", "tiny", "--repeats", "10000")
    assert refused.code == 2 and refused.err.startswith("Error: ") and len(refused.err) < 1_000, refused.err[-500:]
    whole = mlsd("run", "--dry-run", "B", "--profile", "tiny", "--repeats", "10000")
    assert whole.code == 2 and "a plan holds at most 500,000" in whole.err, whole.err[-500:]


def test_eighty_equal_rows_are_judged(tmp_path: Path, mlsd: Mlsd) -> None:  # noqa: F811
    head, row, *_ = (ROOT / "tests" / "analysis" / "data" / "study_runs_excerpt.csv").read_text().splitlines()
    table = tmp_path / "t.csv"
    table.write_text("\n".join([head, *[row] * 80]) + "\n")
    assert mlsd("audit", table).code in (0, 1)


LONG = f"7777{os.getpid()}"  # seconds, which no other process sleeps


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("yes", "more than 1,048,576 bytes"),
        ("yes >&2", "more than 1,048,576"),
        (f"sleep {LONG} & sleep {LONG}", "not done after 0.5 s"),
        (f"exec >&- 2>&-; sleep {LONG}", "not done after 0.5 s"),
    ],
    ids=("prints", "complains", "sleeps", "closes"),  # two processes of pytest must collect the same names
)
def test_a_program_without_end_is_ended_with_all_that_it_started(script: str, says: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OSError, match=says):
        output_of(["/bin/sh", "-c", script], timeout_s=0.5 if "sleep" in script else 60.0, cwd=tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    assert not alive(LONG)


def test_a_program_is_not_held_up_by_what_it_leaves_behind(tmp_path: Path) -> None:
    done = output_of(["/bin/sh", "-c", f"sleep {LONG} & echo out; echo err >&2; exit 3"], timeout_s=60.0, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert not alive(LONG)

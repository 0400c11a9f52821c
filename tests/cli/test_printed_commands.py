"""Every command that a surface prints runs as it stands, and goes on from what was asked: nothing is dropped."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlsd.cli.main import COMMANDS
from mlsd.folders import asset_path
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd, Ran
from tests.servers.fake import FakeServer

pytestmark = pytest.mark.heavy
_COMMAND = re.compile(rf"(?=\bmlsd (?:{'|'.join(COMMANDS)})\b)")
_BEHIND = re.compile(r"\)| \(|, or $|, $|\.? *$|[`;\n]|: real|, and |\. ")
# Options at which every default is left, on files whose paths hold a space.
ASKED = ("--n-predict", 6, "--repeats", 1, "--n-threads", 1, "--n-ctx", 512, "--flash-attention", "off", "--seed", 3)


def printed(ran: Ran) -> list[list[str]]:
    """Every whole command of an output, as a shell takes it; mentions, and those with a word to fill in, are none."""
    lines = (ran.out + ran.err).splitlines()
    found_commands = [
        shlex.split(_BEHIND.split(one, maxsplit=1)[0]) for line in lines for one in _COMMAND.split(line)[1:]
    ]
    return [
        one[1:] for one in found_commands if len(one) > 2 and not any(re.fullmatch("[A-Z]{4,}", word) for word in one)
    ]


def run_all(mlsd: Mlsd, ran: Ran) -> list[list[str]]:
    assert ran.code in (0, 130), ran.err
    commands = printed(ran)
    for arguments in commands:
        done = mlsd(*arguments)
        assert done.code == 0, (arguments, done.out, done.err)
    return commands


def cases(path: str | Path) -> set[str]:
    with Store.open(Path(path), read_only=True) as store:
        return set(store.cases())


@pytest.mark.parametrize("sampled", [(), ("--temperature", 0.7, "--top-p", 0.9, "--top-k", 40)])
def test_what_decides_a_bench_is_the_same_bench(mlsd: Mlsd, tmp_path: Path, sampled: Sequence[object]) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in ("tiny-dense", "tiny-draft"):
        (folder / f"my {name}.gguf").write_bytes(asset_path(f"tiny/{name}.gguf").read_bytes())
    (folder / "my prompt.txt").write_text("def add(a, b):\n    return a + b\n" * 4)
    (folder / "mine.py").write_text("import mlsd\n\n\nclass Freq(mlsd.Drafter):\n    pass\n")
    db = folder / "some trials.sqlite"
    given = (
        "--draft",
        folder / "my tiny-draft.gguf",
        "--drafter",
        "pld:ngram=2",
        "--drafter",
        f"{folder}/mine.py:Freq",
    )
    bench = ("bench", folder / "my tiny-dense.gguf", *given, "--gamma", 2, "--prompt", folder / "my prompt.txt")
    ran = mlsd(*bench, *ASKED, "--stop-at-eog", *sampled, "--db", db)
    before = cases(db)
    commands = run_all(mlsd, ran)
    assert {words[0] for words in commands} >= {"bench", "report"}
    assert cases(db) == before and len(before) == 4, "each was measured as it was asked"


def test_a_search_and_its_advice_go_on_in_its_database_with_its_settings(mlsd: Mlsd, tmp_path: Path) -> None:
    db = tmp_path / "s.sqlite"
    few = ("--n-predict", 6, "--repeats", 3, "--n-threads", 1)
    ran = mlsd("search", "tiny-dense", "--drafter", "pld", "--settings", 1, *few, "--prompt", "code", "--db", db)
    run_all(mlsd, ran)
    asked = mlsd("advise", "tiny-dense", "--workload", "code", "--n-threads", 1, "--db", db, "--gamma", "1,3")
    assert asked.code == 0, asked.err
    commands = [arguments for arguments in printed(asked) if arguments[0] == "bench"]
    for arguments in commands:
        assert {"--db", "--n-threads"} <= set(arguments), (arguments, asked)
        assert (
            arguments[arguments.index("--db") + 1] == str(db) and arguments[arguments.index("--n-threads") + 1] == "1"
        )
        done = mlsd(*arguments, "--budget-s", 5, "--n-predict", 6)
        assert done.code == 0, done.err
    with Store.open(db, read_only=True) as store:
        assert {case.engine.n_threads for case in store.cases().values()} == {1}


def test_what_runs_records_and_reports_print_runs(mlsd: Mlsd, tmp_path: Path) -> None:
    db = tmp_path / "a study.sqlite"
    few = ("--n-predict", 6, "--repeats", 1, "--n-threads", 1, "--prompt", "factual", "--gamma", 2)
    run_all(mlsd, mlsd("run", "B", "--profile", "tiny", *few, "--db", db))
    run_all(mlsd, mlsd("results", "--db", db))
    run_all(mlsd, mlsd("report", "--db", db, "-o", tmp_path / "page"))
    run_all(mlsd, mlsd("record", "write", db, "-o", tmp_path / "a study.record.gz"))
    run_all(mlsd, mlsd("record", "import", tmp_path / "a study.record.gz", "--into", tmp_path / "their study.sqlite"))
    run_all(mlsd, mlsd("calibrate", "parts", "tiny-dense", "--repeats", 1, "--n-threads", 1, "--db", db))


def child(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a shell does with a line that was printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_what_a_page_prints_as_next_goes_on_with_the_data_that_printed_it(mlsd: Mlsd) -> None:
    """It measured everything anew: without --n-threads each case was another one."""
    Path("my files").mkdir()
    Path("my files/a draft.gguf").write_bytes(asset_path("tiny/tiny-draft.gguf").read_bytes())
    few = ("--n-predict", 48, "--repeats", 1, "--n-threads", 1, "--gamma", "2,4", "--prompt", "factual")
    models = ("--profile", "tiny", "--model", "draft-small=my files/a draft.gguf")
    assert mlsd("run", "B", *models, *few, "--db", "s.sqlite").code == 0
    ran = mlsd("report", "--db", "s.sqlite", "-o", "page")
    (line,) = [line.removeprefix("Next: ") for line in ran.err.splitlines() if line.startswith("Next: ")]
    done = child(line, Path.cwd())
    assert done.returncode == 0, (line, done.stderr)
    (measured, before) = re.search(r"(\d+) trials measured.*, (\d+) done before", done.stderr).groups()  # type: ignore
    assert int(before) > 0 and int(measured) == int(before), (line, "as many blocks again, and nothing anew")


def test_what_decides_a_bench_goes_on_with_its_blocks_and_decides_or_says_why_not(mlsd: Mlsd) -> None:
    asked = ("tiny-dense", "--drafter", "pld", "--drafter", "ngram-cache", "--gamma", "2,4", "--n-predict", 48)
    ran = mlsd("bench", *asked, "--repeats", 1, "--n-threads", 1, "--json")
    (answer,) = json.loads(ran.out)["answers"]
    assert answer["use"] == "not decided yet" and answer["next_s"] > 0, "of one block nothing is known"
    done = child(f"{answer['next']} --json", Path.cwd())
    assert done.returncode == 0, (answer, done.stderr)
    printed_again = json.loads(done.stdout)
    arms = [row for row in printed_again["summary"] if row["setting"] != "plain"]
    assert len(arms) == 4 and max(row["n_blocks"] for row in arms) >= 3, "the first block, and blocks enough for a word"
    (again,) = printed_again["answers"]
    assert again["use"] in ("on", "off") or (printed_again["stopped"] in ("budget", "blocks") and again["sentence"])


def test_a_searched_draft_is_measured_as_it_says(mlsd: Mlsd, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("def add(a, b):\n    return a + b\n" * 20)
    asked = ("--search", "greedy", "--fraction", 0.5, "--text", tmp_path / "text.txt", "--n-threads", 1)
    ran = mlsd("models", "make", "subset", "tiny-dense", *asked, "-o", tmp_path / "a draft.gguf")
    assert [words[0] for words in run_all(mlsd, ran)] == ["bench"]


def test_what_decides_a_server_is_asked_of_the_same_server(mlsd: Mlsd, tmp_path: Path) -> None:
    with FakeServer(token_s=0.002) as plain, FakeServer(draft=True, token_s=0.002) as drafting:
        asked = ("--against", plain.url, "--n-predict", 8, "--repeats", 1, "--seed", 3, "--stop-at-eog")
        ran = mlsd("server", drafting.url, *asked, "--db", tmp_path / "a server.sqlite")
        assert ran.code == 0, ran.err
        commands = printed(ran)
        (again,) = (arguments for arguments in commands if arguments[0] == "server")
        assert {"--against", "--n-predict", "--seed", "--stop-at-eog", "--db", "--until"} <= set(again)
        for arguments in commands:
            more = ("--budget-s", 3) if arguments[0] == "server" else ()
            assert mlsd(*arguments, *more).code == 0, arguments

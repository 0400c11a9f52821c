"""``mlsd run`` on the embedded tiny family: first line, resume, interrupt, and bad input."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import mlsd as mlsd_library
from mlsd.cli.commands import run as command
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd

QUICK = ("--n-threads", 1, "--n-predict", 16, "--repeats", 1, "--prompt", "factual", "--gamma", "4")


def test_a_run_can_be_limited_resumed_and_made_afresh(mlsd: Mlsd, tmp_path: Path) -> None:
    common = ("run", "B", "D", "--profile", "tiny", "--db", tmp_path / "s.sqlite", *QUICK, "--json")
    ran = mlsd(*common, "--limit", 1)
    assert ran.err.index("Loading, and checking how arms roll back: about") < ran.err.index("[1/2]"), "before it begins"
    first = json.loads(ran.out)["outcome"]
    assert (first["n_ok"], first["n_failed"]) == (2, 0)
    ran = mlsd(*common)
    assert "roll back, of 2 loads: about" in ran.err
    second = json.loads(ran.out)["outcome"]
    assert second["n_skipped"] == 2
    assert second["n_ok"] == 4
    fresh = json.loads(mlsd(*common, "--fresh").out)["outcome"]
    assert (fresh["n_ok"], fresh["n_skipped"]) == (6, 0)
    with Store.open(tmp_path / "s.sqlite", create=False) as store:
        assert store.check() == []


def test_a_run_ends_with_its_answer_and_quietly_prints_it_alone(mlsd: Mlsd, tmp_path: Path) -> None:
    asked = ("run", "B", "--profile", "tiny", "--db", tmp_path / "s.sqlite", *QUICK, "-q")
    first, again = mlsd(*asked), mlsd(*asked)
    assert first.out and all(line.startswith("Answer: tiny-moe") for line in first.out.splitlines())
    assert again.out == first.out, "what is done before answers as well"
    planned = json.loads(mlsd(*asked, "--dry-run", "--json").out)
    assert planned["needs"]["time"]["sources"] == {"results": 4}, "from now on there are rates to tell times from"
    carried = json.loads(mlsd(*asked, "--json").out)["answer"]
    assert [f"Answer: {sentence}" for sentence in carried] == first.out.splitlines()
    both = mlsd(*asked, "--json", "--report", tmp_path / "page").out
    assert json.loads(both)["answer"] == carried and (tmp_path / "page" / "report.html").is_file()
    assert "tiny-moe Q8_0, " in mlsd(*asked[:-1]).err, "and names what was measured, where and how"


@pytest.mark.heavy
def test_costs_are_timed_after_the_trials_and_once(mlsd: Mlsd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With models of 20 and 40 megabytes in place of hundreds; all else is as `make study` has it."""
    monkeypatch.setattr("mlsd.measure.parent.bandwidth._SIZES_MB", (20, 40))
    monkeypatch.setattr("mlsd.measure.parent.bandwidth._READ_MB", 64)
    monkeypatch.setattr("mlsd.measure.parent.bandwidth._QUANTS", ("Q8_0",))
    db = tmp_path / "s.sqlite"
    asked = ("run", "D", "--profile", "tiny", "--db", db, *QUICK, "--costs", 1)
    mlsd(*asked)
    study = mlsd_library.open_study(db)
    assert set(study.passes["model"]) == {"tiny-dense"}
    assert {"timed passes", "known bytes", "plain read"} <= set(study.bandwidth["source"])
    mlsd(*asked)
    assert len(mlsd_library.open_study(db).passes) == len(study.passes)


def test_a_load_larger_than_memory_is_refused(mlsd: Mlsd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    from mlsd import hardware

    small = msgspec.structs.replace(hardware.read_environment(), memory_bytes=1_000_000)
    monkeypatch.setattr("mlsd.measure.parent.memory.read_environment", lambda backend: small)
    result = mlsd("run", "D", "--profile", "tiny", "--db", tmp_path / "s.sqlite", *QUICK)
    assert result.code == 2
    assert "may be used" in result.err and "Choose a smaller profile" in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
def test_ctrl_c_ends_with_130_leaves_no_process_and_the_same_command_goes_on(mlsd: Mlsd, tmp_path: Path) -> None:
    command = ["run", "B", "--profile", "tiny", "--db", str(tmp_path / "s.sqlite"), "--n-threads", "1"]
    command += ["--n-predict", "128", "--prompt", "factual", "--gamma", "4", "--repeats", "4"]
    arguments = [sys.executable, "-m", "mlsd", *command]
    with subprocess.Popen(
        arguments,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        # A test run in the background inherits an ignored interrupt, which the user of a terminal never has.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("[1/"))
        workers = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(30) == 130
    assert "what had ended is kept; the same command can be given again" in rest
    left = psutil.wait_procs(workers, timeout=20)[1]
    assert not left, "a worker outlived its run"
    resumed = json.loads(mlsd(*command, "--json").out)["outcome"]
    assert resumed["n_skipped"] >= 1
    assert resumed["n_left"] == 0


@pytest.mark.parametrize(
    ("memory_gib", "asks", "profile", "said"),
    [
        (192, True, "mac-128gb", "Profile mac-128gb is the largest"),
        (64, True, "mac-64gb", "--profile (PROFILE=) names another"),
        (192, False, None, "only what is here is measured. PROFILE=mac-128gb"),
        (8, True, None, ""),
    ],
)
def test_without_a_profile_the_largest_that_fits_is_proposed_where_somebody_can_be_asked(
    memory_gib: int, asks: bool, profile: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(command, "note", notes.append)
    monkeypatch.setattr(command, "memory_bytes", lambda: memory_gib << 30)
    assert command._proposed(asks=asks) == profile
    assert said in "".join(notes)

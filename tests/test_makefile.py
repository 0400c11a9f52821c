"""What the Makefile runs for a user runs in an empty home, on the llama.cpp that is installed, with nothing set."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = "--repeats 1 --n-predict 16 --gamma 4 --prompt code"


def users(home: Path) -> dict[str, str]:
    """The whole environment of a user's shell, however this test run was started."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm"}


def test_a_suite_that_is_none_is_answered_with_those_that_are(tmp_path: Path) -> None:
    asked = ["make", "--silent", "suite-H"]
    done = subprocess.run(asked, cwd=ROOT, env=users(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout.startswith("There is no suite H. Suites: A B C D E F G;")


@pytest.mark.heavy
@pytest.mark.native
@pytest.mark.parametrize("suite", "ABCDEFG")
def test_every_suite_of_the_embedded_family_runs_in_an_empty_home(suite: str, tmp_path: Path) -> None:
    asked = ["make", "--dry-run", f"suite-{suite}", "PROFILE=tiny", f"ARGS={QUICK}"]
    dry = subprocess.run(asked, cwd=ROOT, env=users(tmp_path), capture_output=True, text=True, check=True)
    program, *arguments = shlex.split(dry.stdout.splitlines()[-1])
    assert program.endswith("bin/mlsd")
    home = tmp_path / "My Stüff"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "mlsd", *arguments],
        cwd=home,
        env=users(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert " 0 failed, 0 done before, 0 left" in done.stderr + done.stdout

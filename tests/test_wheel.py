"""The built wheel works without the checkout: it carries its suites, manifest and assets, and finds them."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mlsd.store.store import Store

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built by hatchling as an installer would."""
    out = tmp_path_factory.mktemp("wheel")
    code = f"import hatchling.build; print(hatchling.build.build_wheel({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


@pytest.mark.slow
def test_the_wheel_carries_every_data_file_of_the_checkout(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"mlsd/data/suites/{path.name}" for path in (ROOT / "suites").glob("*.toml")}
    expected |= {"mlsd/data/gguf_manifest.toml"}
    for folder in (
        "assets",
        "report/render/templates",
        "audits/published",
        "analysis/claims",
        "engine/llama/build",
    ):
        files = (path for path in (ROOT / "mlsd" / folder).rglob("*") if path.suffix not in (".py", ".pyc", ""))
        expected |= {str(path.relative_to(ROOT)) for path in files}
    assert len(expected) > 20
    assert expected <= held


def test_the_wheel_carries_no_tests_and_no_build_output(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"mlsd"}


@pytest.mark.heavy
@pytest.mark.native
def test_an_unpacked_wheel_runs_the_demo_far_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    home, out = tmp_path / "site", tmp_path / "report"
    zipfile.ZipFile(wheel).extractall(home)
    out.mkdir()
    (out / "demo.sqlite").write_text("left by an earlier version")
    code = (
        "import mlsd; from mlsd.folders import data_path; print(mlsd.__file__, data_path('suites'), flush=True);"
        "from mlsd.cli import main; main(['run', 'A', '--profile', 'tiny', '--dry-run', '--json']);"
        # What nobody has to install: the real model's package.
        "import mlsd.cli.commands.demo as demo; demo._REAL = ('far/away.gguf',) * 2;"
        f"main(['demo', '--quick', '--n-threads', '1', '-o', {str(out)!r}])"
    )
    environment = {**os.environ, "PYTHONPATH": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(Path(place).is_relative_to(home) for place in done.stdout.splitlines()[0].split())
    assert '"study_trials":18' in done.stdout.replace(" ", "")
    assert "Using the embedded tiny-dense instead" in done.stderr
    undecided = "NOT DECIDED YET|NO USABLE MEASUREMENT"  # a quick demo beside other work decides little
    for ending in (f"WIN|{undecided}", f"LOSS|{undecided}", "THE INVALID ONE", "IN TRUTH"):
        assert re.search(ending, done.stderr), ending
    with Store.open(out / "demo.sqlite", read_only=True) as store:
        trials = [stored.trial for stored in store.trials()]
        runs = store.runs()
    assert len(runs) == 4
    # A busy machine may disturb others; those say so.
    invalid = [t for t in trials if t.status == "invalid"]
    assert invalid and all(trial.rollback_target == "unchecked" for trial in invalid)
    assert all("native calls failed and were ignored" in (trial.reason or "") for trial in invalid)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert runs[0].started_at[:10] in page and "random-moe" in page

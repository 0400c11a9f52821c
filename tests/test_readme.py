"""The README tells the truth: every command in it runs, every file it names exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mlsd.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
LINES = [line[2:].split("  #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]
# Commands that need a Mac with the study's models, hours, or a network: shown, explained, and only parsed here.
NOT_RUN = ("mlsd models pull", "git clone")


@pytest.mark.heavy
def test_every_mlsd_command_of_the_readme_runs_in_order(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    ran = 0
    for line in LINES:
        if not line.startswith("mlsd ") or line.startswith(NOT_RUN):
            continue
        done = subprocess.run(
            shlex.split(line), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}\n{done.stderr}"
        ran += 1
    assert ran >= 10


def test_every_make_target_of_the_readme_exists() -> None:
    targets = [line.split() for line in LINES if line.startswith("make ")]
    assert targets
    for words in targets:
        dry = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, dry.stderr


def test_every_command_that_is_shown_but_not_run_is_a_command() -> None:
    for line in LINES:
        words = shlex.split(line)
        if words[0] == "mlsd":
            assert words[1] in COMMANDS, line


def test_every_file_the_readme_points_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_every_command_is_mentioned_in_the_readme() -> None:
    for name in COMMANDS:
        assert f"mlsd {name}" in README, name

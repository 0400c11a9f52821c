import os
import sys
from pathlib import Path

import psutil
import pytest

from mlsd.hardware.awake import awake, keeper_command


def test_each_system_has_a_tool_that_watches_this_process() -> None:
    assert keeper_command("darwin", 4711) == ("caffeinate", "-ims", "-w", "4711")
    command = keeper_command("linux", 4711)
    assert command[0] == "systemd-inhibit" and "--pid=4711" in command


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="plays Linux's tool")
def test_the_tool_runs_meanwhile_and_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "systemd-inhibit"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    before = set(psutil.Process().children())
    with awake() as keeper:
        assert keeper == "systemd-inhibit"
        assert len(set(psutil.Process().children()) - before) == 1
    assert not set(psutil.Process().children()) - before


def test_without_a_tool_measuring_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with awake() as keeper:
        assert keeper is None

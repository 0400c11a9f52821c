import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from mlsd.hardware.awake import awake, keeper_command


def test_each_system_has_a_tool_that_watches_this_process() -> None:
    assert keeper_command("darwin", 4711) == ("caffeinate", "-ims", "-w", "4711")
    command = keeper_command("linux", 4711)
    assert command[0] == "systemd-inhibit" and "--pid=4711" in command


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="plays Linux's tool")
def test_the_tool_runs_meanwhile_and_is_gone_afterwards_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "systemd-inhibit"
    tool.write_text("#!/bin/sh\nsleep 60 &\nwait\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    before = set(psutil.Process().children())
    with awake() as keeper:
        assert keeper == "systemd-inhibit"
        (tool_process,) = set(psutil.Process().children()) - before
        while not (waiting := tool_process.children()):
            time.sleep(0.01)
    assert not set(psutil.Process().children()) - before
    psutil.wait_procs(waiting, timeout=10)
    assert not [process for process in waiting if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_without_a_tool_measuring_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with awake() as keeper:
        assert keeper is None

"""Keeping the machine awake while it measures: the time that a Mac sleeps within a trial counts as decoding."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mlsd.children import end_session


def keeper_command(platform: str, pid: int) -> tuple[str, ...]:
    """The system's own tool that forbids sleep until process `pid` ends; empty where none is known."""
    if platform == "darwin":
        return ("caffeinate", "-ims", "-w", str(pid))
    if platform.startswith("linux"):
        wait = ("tail", f"--pid={pid}", "-f", "/dev/null")
        return ("systemd-inhibit", "--what=sleep:idle", "--who=mlsd", "--why=measuring", "--mode=block", *wait)
    return ()


@contextmanager
def awake() -> Iterator[str | None]:
    """Forbid sleep meanwhile (not that of a closed lid); yields the name of the tool that does, or None."""
    command = keeper_command(sys.platform, os.getpid())
    path = shutil.which(command[0]) if command else None
    keeper = None
    if path is not None:
        quiet = subprocess.DEVNULL
        keeper = subprocess.Popen([path, *command[1:]], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield command[0] if keeper is not None and keeper.poll() is None else None
    finally:
        if keeper is not None:
            end_session(keeper)  # systemd-inhibit does not end what waits for it

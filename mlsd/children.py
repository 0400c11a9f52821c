"""Child processes that run a module of ours: how one is started, and that it never outlives its parent.

``-P`` keeps the working directory off the import path: a `msgspec.py` beside somebody's models must not run.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO


def start_child(
    module: str,
    *arguments: str,
    stdin: int,
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Run a module of ours as a session that lives while `stdin` is open; `variables` are its whole environment."""
    line = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.Popen(line, stdin=stdin, stdout=stdout, stderr=stderr, env=variables, start_new_session=True)


def end_session(process: subprocess.Popen[bytes]) -> int:
    """End a process that leads a session with all that it started, and wait for it; its exit code."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS forbids it where only its corpse is left
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def end_with_parent() -> queue.SimpleQueue[bytes]:
    """End this process and its session once standard input closes; returns the lines that come until then."""

    def end() -> None:
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    return on_end_of_input(end)


def on_end_of_input(act: Callable[[], object]) -> queue.SimpleQueue[bytes]:
    """Do something as soon as standard input closes; until then its lines are queued."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        rest = b""
        while chunk := os.read(0, 1 << 20):  # unbuffered: a lock on the buffer would be held when the process ends
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                lines.put(line)
        act()

    threading.Thread(target=read, daemon=True).start()
    return lines


def signal_name(number: int) -> str:
    """The name of a signal that ended a process; of a number that is none, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

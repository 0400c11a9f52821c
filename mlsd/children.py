"""Child processes that run a module of ours: how one is started, and that it never outlives its parent.

``-P`` keeps the working directory off the import path, which ``-m`` alone puts first: a `msgspec.py` lying beside
somebody's models must not run. PYTHONPATH holds for a child as it does for its parent.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours in this interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def end_with_parent() -> queue.SimpleQueue[bytes]:
    """End this process as soon as its standard input closes, which is when its parent closes it or is gone.

    Returns the lines that the parent writes until then.
    """
    return on_end_of_input(lambda: os._exit(1))


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

"""Child processes that run a module of ours: how one is started, and that it never outlives its parent.

``-P`` keeps the working directory off the import path, which ``-m`` alone puts first: a `msgspec.py` lying beside
somebody's models must not run. PYTHONPATH holds for a child as it does for its parent.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours in this interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def end_with_parent() -> None:
    """End this process as soon as its standard input closes, which is when its parent closes it or is gone."""
    on_end_of_input(lambda: os._exit(1))


def on_end_of_input(act: Callable[[], object]) -> None:
    """Do something as soon as standard input closes."""

    def wait() -> None:
        while os.read(0, 1):  # unbuffered: a lock on the buffer would be held when the process ends
            pass
        act()

    threading.Thread(target=wait, daemon=True).start()

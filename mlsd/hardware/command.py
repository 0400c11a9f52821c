"""Running the system's own tools: their output as text, or nothing."""

import shutil
import subprocess
from collections.abc import Sequence

_TIME_LIMIT_S = 15.0  # system_profiler needs seconds on a busy machine


def run(command: Sequence[str]) -> str | None:
    """What the command printed, whatever its exit code (`sysctl` fails when one of many names is unknown)."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        # With a path and inherited descriptors Python spawns instead of forking: a process that holds tens of gigabytes
        # of weights would spend milliseconds on its page tables at every fork.
        done = subprocess.run(
            [path, *command[1:]], capture_output=True, timeout=_TIME_LIMIT_S, check=False, close_fds=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") or None

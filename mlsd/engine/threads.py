"""How many threads a session takes when nobody says."""

from __future__ import annotations

import subprocess
import sys

import psutil

from mlsd.records import EngineOptions

# With so few cores there is none to spare for the rest of the system, and llama.cpp's threads wait for the slowest:
# one stolen core then stalls every pass.
_FEW_CORES = 4


def threads_of(engine: EngineOptions) -> int:
    """The threads that a session runs on."""
    return engine.n_threads or default_threads()


def default_threads() -> int:
    """Physical cores (performance cores where the machine tells them apart), one less where there are few."""
    cores = _performance_cores() or psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return max(1, cores - 1) if cores <= _FEW_CORES else cores


def _performance_cores() -> int | None:
    if sys.platform != "darwin":
        return None
    asked = subprocess.run(["sysctl", "-n", "hw.perflevel0.physicalcpu"], capture_output=True, text=True, check=False)
    return int(asked.stdout) if asked.returncode == 0 and asked.stdout.strip().isdigit() else None

"""How many threads a session takes when nobody says."""

from __future__ import annotations

import sys

import psutil

from mlsd.errors import InputError
from mlsd.hardware import darwin
from mlsd.records import EngineOptions

# With so few cores there is none to spare for the rest of the system, and llama.cpp's threads wait for the slowest:
# one stolen core then stalls every pass.
_FEW_CORES = 4


def threads_of(engine: EngineOptions) -> int:
    """The threads that a session runs on. Raises: InputError for more than the machine has cores."""
    n_threads = engine.n_threads or default_threads()
    check_threads(n_threads)
    return n_threads


def check_threads(n_threads: int) -> None:
    """Raises: InputError for more threads than cores: llama.cpp's threads wait for the slowest, and no time is true."""
    cores = psutil.cpu_count() or 1
    if n_threads > cores:
        raise InputError(
            f"{n_threads} threads were asked for, but this machine has {cores} core{'s' if cores > 1 else ''}.",
            hint="Give fewer with --n-threads, or leave it out.",
        )


def default_threads() -> int:
    """Physical cores (performance cores where the machine tells them apart), one less where there are few."""
    told = darwin.performance_cores() if sys.platform == "darwin" else None
    cores = told or psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return max(1, cores - 1) if cores <= _FEW_CORES else cores

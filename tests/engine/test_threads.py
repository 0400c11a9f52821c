"""How many threads are taken, and that no more are taken than there are cores."""

import pytest

from mlsd.engine.context import default_threads, threads_of
from mlsd.errors import InputError
from mlsd.hardware import logical_cores
from mlsd.records import EngineOptions


def test_as_many_threads_as_cores_run_and_one_more_is_refused() -> None:
    cores = logical_cores()
    assert threads_of(EngineOptions(n_threads=cores)) == cores
    with pytest.raises(InputError, match=f"{cores + 1} threads were asked for, but this machine has {cores} core"):
        threads_of(EngineOptions(n_threads=cores + 1))


def test_what_nobody_asks_for_can_run() -> None:
    assert threads_of(EngineOptions()) == default_threads() <= logical_cores()

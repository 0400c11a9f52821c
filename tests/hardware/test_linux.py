import subprocess
import sys
from types import SimpleNamespace

import pytest

from mlsd.hardware import linux
from mlsd.hardware.reading import on_battery

CPUINFO = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\n"
OS_RELEASE = 'NAME="Debian GNU/Linux"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'


def facts(**files: str | None):
    return linux.facts(
        {"cpuinfo": CPUINFO, "os-release": OS_RELEASE, "machine-id": "abc"} | files,
        kernel="6.1.0",
        physical_cores=8,
        logical_cores=16,
        memory_bytes=32_000,
    )


def test_a_machine_is_read_from_its_files() -> None:
    read = facts().environment
    assert (read.chip, read.os) == ("AMD EPYC", "Debian GNU/Linux 12 (bookworm), Linux 6.1.0")
    assert (read.performance_cores, read.efficiency_cores, read.logical_cores) == (8, 0, 16)
    assert read.memory_bytes == 32_000
    assert read.peak_bandwidth_gb_s is None


@pytest.mark.parametrize(
    ("atom", "performance", "efficiency"), [("12-15", 4, 4), ("0-1,7", 5, 3), ("7", 7, 1), ("", 8, 0), (None, 8, 0)]
)
def test_efficiency_cores_of_a_hybrid_processor_are_counted_by_their_list(
    atom: str | None, performance: int, efficiency: int
) -> None:
    read = facts(atom=atom).environment
    assert (read.performance_cores, read.efficiency_cores) == (performance, efficiency)


@pytest.mark.parametrize(("limit", "n_bytes"), [("max", 32_000), ("16000", 16_000), ("9223372036854771712", 32_000)])
def test_a_containers_memory_limit_counts_where_it_is_lower(limit: str, n_bytes: int) -> None:
    assert linux.lower(32_000, [limit, None]) == linux.lower(32_000, [None, limit]) == n_bytes


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [(["max 100000", " "], 8), (["200000 100000", " "], 2), (["150000 100000", " "], 1), (["50000 100000", " "], 1),
     (["", "400000 100000"], 4), (["", "-1 100000"], 8), (["9000000 100000", ""], 8)],
)  # fmt: skip
def test_a_containers_quota_of_processor_time_counts_in_whole_cores(quotas: list[str], cores: int) -> None:
    assert linux.whole_cores(8, quotas) == cores


def test_no_more_cores_of_a_kind_are_counted_than_this_process_may_run_on() -> None:
    for allowed, expected in [(16, (5, 3)), (7, (5, 2)), (4, (4, 0)), (1, (1, 0))]:
        read = linux.facts(
            {"cpuinfo": CPUINFO, "atom": "0-1,7"}, kernel="6", physical_cores=8, logical_cores=allowed, memory_bytes=1
        ).environment
        assert (read.performance_cores, read.efficiency_cores, read.logical_cores) == (*expected, allowed)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems bind no process to a core")
def test_a_process_bound_to_one_core_runs_on_one_thread_and_refuses_two() -> None:
    script = """
import os
from mlsd.engine.context import check_threads, default_threads
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
print(default_threads())
check_threads(2)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.stdout == "1\n" and "this machine has 1 core." in answer.stderr


def test_a_machine_without_an_id_has_no_identity_of_its_own() -> None:
    assert facts(**{"machine-id": None}).identity is None
    assert facts().identity != facts(cpuinfo="model name : another\n").identity


@pytest.mark.parametrize(
    ("battery", "on"),
    [(None, False), (SimpleNamespace(power_plugged=True), False), (SimpleNamespace(power_plugged=False), True),
     (SimpleNamespace(power_plugged=None), None)],
)  # fmt: skip
def test_a_machine_without_a_battery_does_not_run_on_one(
    battery: object, on: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.sensors_battery", lambda: battery)
    assert on_battery() is on


def test_arm_systems_that_name_no_model_have_no_chip() -> None:
    assert linux.parse_cpu_model("processor : 0\nBogoMIPS : 50\n") is None


def test_the_largest_cache_is_read_as_linux_writes_it() -> None:
    assert linux.largest(["48K\n", "32768K\n", "2M"]) == 32 << 20
    assert linux.largest(["", "unknown"]) is None

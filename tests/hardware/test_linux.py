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
        total_bytes=32_000,
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
    assert facts(cgroup=limit).environment.memory_bytes == n_bytes


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

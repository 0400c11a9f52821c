"""Energy counters as recorded elsewhere: what is summed, and what is left when one cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlsd.hardware import energy


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages with cores and memory inside, as a two-socket server lists them."""
    for name, kind, microjoules in (
        ("intel-rapl:0", "package-0", 5_000_000),
        ("intel-rapl:0:0", "core", 3_000_000),
        ("intel-rapl:0:1", "dram", 700_000),
        ("intel-rapl:1", "package-1", 4_000_000),
        ("intel-rapl:1:0", "dram", 300_000),
        ("intel-rapl:2", "psys", 12_000_000),  # the whole machine: both packages again
        ("intel-rapl-mmio:0", "package-0", 5_000_000),  # the first package by another road
    ):
        zone = tmp_path / name
        zone.mkdir()
        (zone / "name").write_text(f"{kind}\n")
        (zone / "energy_uj").write_text(f"{microjoules}\n")
    (tmp_path / "intel-rapl").mkdir()
    return tmp_path


def test_packages_and_memory_are_counted_once(powercap: Path) -> None:
    assert energy.powercap_mj(powercap) == 10_000.0


def test_a_folder_without_zones_or_rights_is_no_counter(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", powercap / "nowhere")
    assert energy._powercap() is None
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    monkeypatch.setattr(energy, "POWERCAP", powercap)
    assert energy._powercap() is None


def test_apple_parts_that_are_not_given_are_left_out() -> None:
    """As zeus-apple-silicon gives them: whole millijoules, None for what a chip does not publish."""
    full = SimpleNamespace(cpu_total_mj=1200, gpu_mj=5400, dram_mj=800, ane_mj=0, gpu_sram_mj=3)
    assert energy.apple_mj(full) == 7400.0
    assert energy.apple_mj(SimpleNamespace(cpu_total_mj=1200, gpu_mj=None, dram_mj=None, ane_mj=None)) == 1200.0
    with pytest.raises(ValueError, match="no part"):
        energy.apple_mj(SimpleNamespace())


@pytest.mark.parametrize(
    ("chip", "half"), [("Apple M2 Ultra", True), ("Apple M5 Max", False), ("Apple M1", False), (None, True)]
)
def test_a_chip_of_two_dies_is_not_counted_by_half(
    chip: str | None, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(cpu_total_mj=1200, gpu_mj=5400, dram_mj=800, ane_mj=0)
    monitor = SimpleNamespace(get_cumulative_energy=lambda: full)
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", SimpleNamespace(AppleEnergyMonitor=lambda: monitor))
    monkeypatch.setattr(energy, "run", lambda command: chip and f"{chip}\n")
    assert (energy._apple() is None) == half


def test_a_counter_that_fails_later_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> float:
        raise RuntimeError("the driver is gone")

    for found in (("GPU, NVML", fails), None):
        monkeypatch.setattr(energy, "_counter", lambda backend, found=found: found)
        assert energy.read_energy("CUDA") is None
    monkeypatch.setattr(energy, "_counter", lambda backend: ("GPU, NVML", lambda: 5.0))
    assert energy.read_energy("CUDA") == energy.EnergyReading(source="GPU, NVML", mj=5.0)


@pytest.mark.parametrize(
    ("platform", "backend", "source"),
    [("linux", "CPU", "powercap"), ("linux", "CUDA", "NVML"), ("linux", "Vulkan", None), ("darwin", "Metal", "zeus")],
)
def test_only_what_computes_is_counted(
    platform: str, backend: str, source: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card that idles beside a run on the processor is not its energy."""
    for name, words in (("_apple", "zeus"), ("_nvidia", "NVML"), ("_powercap", "powercap")):
        monkeypatch.setattr(energy, name, lambda words=words: (words, lambda: 1.0))
    monkeypatch.setattr(energy.sys, "platform", platform)
    energy._counter.cache_clear()
    read = energy.read_energy(backend)
    energy._counter.cache_clear()
    assert (read.source if read else None) == source

"""Cumulative energy counters, read before and after a generation and never inside one; None where there is none.

Apple silicon by zeus-apple-silicon (no root), CUDA by nvidia-ml-py, a processor on Linux by powercap where it may be
read. A counter may wrap, stand still or jump: `mlsd.measure.run.checks` judges what its readings are worth.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlsd.hardware.command import run
from mlsd.records import Record

POWERCAP = Path("/sys/class/powercap")


class EnergyReading(Record, frozen=True, kw_only=True):
    """What a counter says at one moment; only the difference of two means anything."""

    source: str  # what it counts: "processor, powercap", "chip, zeus-apple-silicon", "GPU, NVML"
    mj: float  # millijoules since some moment


def read_energy(backend: str) -> EnergyReading | None:
    """The energy counter of what computes on this backend of llama.cpp, now: some files or one native call."""
    found = _counter(backend)
    if found is None:
        return None
    source, read = found
    try:
        return EnergyReading(source=source, mj=read())
    except Exception:  # noqa: BLE001 - a counter of a driver may fail in its own ways: then nothing was measured
        return None


@functools.cache
def _counter(backend: str) -> tuple[str, Callable[[], float]] | None:
    if sys.platform == "darwin":
        return _apple()
    return {"CUDA": _nvidia, "CPU": _powercap}.get(backend, lambda: None)()


def _apple() -> tuple[str, Callable[[], float]] | None:
    if counts_one_die(run(("sysctl", "-n", "machdep.cpu.brand_string"))):
        return None
    try:
        from zeus_apple_silicon import AppleEnergyMonitor

        monitor = AppleEnergyMonitor()
        apple_mj(monitor.get_cumulative_energy())
    except Exception:  # noqa: BLE001 - not installed, or not this chip
        return None
    return "chip, zeus-apple-silicon", lambda: apple_mj(monitor.get_cumulative_energy())


def counts_one_die(chip: str | None) -> bool:
    """Whether zeus-apple-silicon (to 1.1.0) may count half of this chip: an Ultra has two dies, an unknown one may."""
    return chip is None or "Ultra" in chip


def apple_mj(metrics: Any) -> float:
    """Processor, GPU, memory and neural engine in mJ, as `AppleEnergyMetrics` of zeus-apple-silicon 1.1 names them.

    Clusters and cores are parts of `cpu_total_mj`; `gpu_sram_mj`, which M5 has not, is left out everywhere.
    """
    parts = [getattr(metrics, name, None) for name in ("cpu_total_mj", "gpu_mj", "dram_mj", "ane_mj")]
    known = [float(part) for part in parts if part is not None]
    if not known:
        raise ValueError("no part of the chip is counted")
    return sum(known)


def _nvidia() -> tuple[str, Callable[[], float]] | None:
    """Millijoules since the driver was loaded, of Volta and later (NVML, `nvmlDeviceGetTotalEnergyConsumption`)."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        read = pynvml.nvmlDeviceGetTotalEnergyConsumption
        if not handles or not sum(read(handle) for handle in handles):
            return None
    except Exception:  # noqa: BLE001 - not installed, no driver, or an older card
        return None
    return "GPU, NVML", lambda: float(sum(read(handle) for handle in handles))


def _powercap() -> tuple[str, Callable[[], float]] | None:
    try:
        powercap_mj(POWERCAP)
    except (OSError, ValueError):
        return None
    return "processor, powercap", lambda: powercap_mj(POWERCAP)


def powercap_mj(folder: Path) -> float:
    """Packages and memory under a powercap folder, without `psys`, which contains them. Raises: OSError, ValueError."""
    zones = {zone: (zone / "name").read_text().strip() for zone in sorted(folder.glob("*-rapl:[0-9]*"))}
    counted = [zone for zone, name in zones.items() if name == "dram" or name.startswith("package-")]
    if not counted:
        raise ValueError("no zone of powercap")
    return sum(int((zone / "energy_uj").read_text()) for zone in counted) / 1000

"""Cumulative energy counters, read before and after a generation and never inside one; None where there is none.

Apple silicon by zeus-apple-silicon (no root), NVIDIA by nvidia-ml-py, Linux by powercap where it may be read. A counter
may wrap, stand still or jump: what its readings are worth is judged by `mlsd.measure.run.checks`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlsd.records import Record

POWERCAP = Path("/sys/class/powercap")


class EnergyReading(Record, frozen=True, kw_only=True):
    """What a counter says at one moment; only the difference of two means anything."""

    source: str  # what it counts: "processor, powercap", "chip, zeus-apple-silicon", "GPU, NVML"
    mj: float  # millijoules since some moment


def read_energy() -> EnergyReading | None:
    """The counter of this machine now: some files or one native call."""
    found = _counter()
    if found is None:
        return None
    source, read = found
    try:
        return EnergyReading(source=source, mj=read())
    except Exception:  # noqa: BLE001 - a counter of a driver may fail in its own ways: then nothing was measured
        return None


@functools.cache
def _counter() -> tuple[str, Callable[[], float]] | None:
    if sys.platform == "darwin":
        return _apple()
    return _nvidia() or _powercap()


def _apple() -> tuple[str, Callable[[], float]] | None:
    try:
        from zeus_apple_silicon import AppleEnergyMonitor

        monitor = AppleEnergyMonitor()
        apple_mj(monitor.get_cumulative_energy())
    except Exception:  # noqa: BLE001 - not installed, or not this chip
        return None
    return "chip, zeus-apple-silicon", lambda: apple_mj(monitor.get_cumulative_energy())


def apple_mj(metrics: Any) -> float:
    """Processor, GPU, memory and neural engine of zeus-apple-silicon's metrics; a part it does not give is left out."""
    parts = [getattr(metrics, name, None) for name in ("cpu_total_mj", "gpu_mj", "dram_mj", "ane_mj")]
    known = [float(part) for part in parts if part is not None]
    if not known:
        raise ValueError("no part of the chip is counted")
    return sum(known)


def _nvidia() -> tuple[str, Callable[[], float]] | None:
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
    """The packages under a powercap folder and the memory beside them; raises OSError or ValueError without any."""
    packages = sorted(folder.glob("*-rapl:[0-9]*"))
    zones = [zone for zone in packages if zone.name.count(":") == 1]
    zones += [zone for zone in packages if zone.name.count(":") == 2 and (zone / "name").read_text().strip() == "dram"]
    if not zones:
        raise ValueError("no zone of powercap")
    return sum(int((zone / "energy_uj").read_text()) for zone in zones) / 1000

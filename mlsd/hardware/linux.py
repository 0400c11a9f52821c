"""Linux: pure parsers of /proc, /sys and os-release, and the two readings made of them."""

import functools
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from mlsd.hardware.reading import MachineFacts, on_battery, whole_number
from mlsd.records import Conditions, Environment

FACT_FILES = {
    "cpuinfo": "/proc/cpuinfo",
    "os-release": "/etc/os-release",
    "machine-id": "/etc/machine-id",
    "product": "/sys/class/dmi/id/product_name",
    "atom": "/sys/devices/cpu_atom/cpus",  # the efficiency cores of hybrid Intel processors
}
# What a container may take, in the second version of control groups and in the first.
_MEMORY_LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
_QUOTAS = ("/sys/fs/cgroup/cpu.max",), ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_PROFILE_FILE = Path("/sys/firmware/acpi/platform_profile")


def read_facts() -> MachineFacts:
    """Ask this machine."""
    files = {name: _read(Path(path)) for name, path in FACT_FILES.items()}
    return facts(
        files,
        kernel=platform.release(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=logical_cores(),
        memory_bytes=memory_bytes(),
    )


def memory_bytes() -> int:
    """The memory of this machine, or less where its container may take less."""
    return lower(psutil.virtual_memory().total, [_read(Path(path)) for path in _MEMORY_LIMITS])


def logical_cores() -> int | None:
    """The processors that this process may run on, or fewer where its container may take less of their time."""
    quotas = [" ".join(_read(Path(path)) or "" for path in paths) for paths in _QUOTAS]
    return whole_cores(len(os.sched_getaffinity(0)), quotas)


@functools.cache
def performance_cores() -> int | None:
    """Those of this machine, for whoever needs no more of it."""
    return read_facts().environment.performance_cores


def read_state() -> Conditions:
    """Ask this machine; a few files."""
    profile = _read(_PROFILE_FILE)
    return Conditions(on_battery=on_battery(), low_power_mode=None if profile is None else profile == "low-power")


def facts(
    files: Mapping[str, str | None],
    *,
    kernel: str,
    physical_cores: int | None,
    logical_cores: int | None,
    memory_bytes: int,
) -> MachineFacts:
    """What the contents of FACT_FILES and the counts say of the machine, and why a field is missing."""
    chip = parse_cpu_model(files.get("cpuinfo"))
    efficiency = count_cpu_list(files.get("atom"))
    fast = None if physical_cores is None else min(physical_cores - efficiency, logical_cores or physical_cores)
    machine_id = files.get("machine-id")
    no_apple = "read on macOS only"
    missing = {
        "chip": "/proc/cpuinfo names no model",
        "hardware_model": "/sys/class/dmi gives no product name",
        "performance_cores": "the physical cores could not be counted",
        "efficiency_cores": "the physical cores could not be counted",
        "gpu_cores": no_apple,
        "wired_limit_bytes": "macOS only",
        "peak_bandwidth_gb_s": "known for Apple's chips only; `mlsd calibrate memory` measures it",
    }
    environment = Environment(
        host="",
        machine="",
        os=parse_os_release(files.get("os-release"), kernel),
        chip=chip,
        hardware_model=files.get("product"),
        performance_cores=fast,
        efficiency_cores=None if fast is None else min(efficiency, (logical_cores or efficiency + fast) - fast),
        logical_cores=logical_cores,
        memory_bytes=memory_bytes,
    )
    # Images of containers and virtual machines may share a machine-id; the processor distinguishes some of them.
    identity = f"{machine_id} {chip}" if machine_id else None
    return MachineFacts(environment=environment, missing=missing, identity=identity)


def largest_cache_bytes() -> int | None:
    """The largest cache between a core and the memory; None where this machine does not say."""
    return largest(file.read_text(encoding="ascii") for file in _CACHES.glob("index*/size"))


def largest(sizes: Iterable[str]) -> int | None:
    """The largest of sizes like ``32768K``; None of none."""
    texts = (text.strip() for text in sizes)
    sizes_bytes = [int(text[:-1]) * _UNITS[text[-1]] for text in texts if text[-1:] in _UNITS and text[:-1].isdigit()]
    return max(sizes_bytes, default=None)


def lower(total_bytes: int, limits: Iterable[str | None]) -> int:
    """The memory where a control group limits it: a number, or `max`."""
    return min([total_bytes, *(n_bytes for text in limits if (n_bytes := whole_number(text)))])


def whole_cores(bound: int, quotas: Iterable[str]) -> int:
    """Of the processors that a process is bound to, as many as its quota fills: `150000 100000` fills one.

    A quota is of microseconds in a period; `max` or -1 is none. Threads beyond it stop in the middle of a pass.
    """
    pairs = [[whole_number(word) for word in text.split()] for text in quotas]
    filled = [pair[0] // pair[1] for pair in pairs if len(pair) == 2 and pair[0] and pair[1]]
    return max(1, min([bound, *filled]))


def parse_cpu_model(cpuinfo: str | None) -> str | None:
    """The processor's name from /proc/cpuinfo; many ARM systems give none."""
    for line in (cpuinfo or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return None


def parse_os_release(text: str | None, kernel: str) -> str:
    """`Debian GNU/Linux 12 (bookworm), Linux 6.1.0`."""
    for line in (text or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return f"{value.strip().strip(chr(34))}, Linux {kernel}"
    return f"Linux {kernel}"


def count_cpu_list(text: str | None) -> int:
    """How many CPUs a kernel list like `0-3,8` names."""
    count = 0
    for part in filter(None, (text or "").strip().split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None

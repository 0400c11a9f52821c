"""Linux: pure parsers of /proc, /sys and os-release, and the two readings made of them."""

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
    "cgroup": "/sys/fs/cgroup/memory.max",
    "cgroup-v1": "/sys/fs/cgroup/memory/memory.limit_in_bytes",
}
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
        logical_cores=psutil.cpu_count(),
        total_bytes=psutil.virtual_memory().total,
    )


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
    total_bytes: int,
) -> MachineFacts:
    """What the contents of FACT_FILES and the counts say of the machine, and why a field is missing."""
    chip = parse_cpu_model(files.get("cpuinfo"))
    efficiency = count_cpu_list(files.get("atom"))
    limits = [whole_number(files.get(name)) for name in ("cgroup", "cgroup-v1")]
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
        performance_cores=None if physical_cores is None else physical_cores - efficiency,
        efficiency_cores=None if physical_cores is None else efficiency,
        logical_cores=logical_cores,
        memory_bytes=min([total_bytes, *(limit for limit in limits if limit)]),
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

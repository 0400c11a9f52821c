"""macOS: pure parsers of what sysctl, sw_vers, system_profiler, pmset, ioreg and notifyutil print without root.

`pmset -g therm` hardly ever reports throttling on Apple Silicon, so the thermal pressure level is asked for.
"""

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

import psutil
from msgspec.structs import replace

from mlsd.hardware import chips
from mlsd.hardware.reading import MachineFacts, on_battery, whole_number
from mlsd.records import Conditions, Environment
from mlsd.units import MIB

_SYSCTL_NAMES = (
    "machdep.cpu.brand_string", "hw.model", "hw.memsize", "hw.ncpu", "hw.nperflevels",
    "hw.perflevel0.name", "hw.perflevel0.physicalcpu", "hw.perflevel1.name", "hw.perflevel1.physicalcpu",
    "hw.perflevel2.name", "hw.perflevel2.physicalcpu",
)  # fmt: skip
STATE_COMMANDS = {"pressure": ("notifyutil", "-g", "com.apple.system.thermalpressurelevel"), "power": ("pmset", "-g")}
FACT_COMMANDS = {
    # Up to macOS 14.3 sysctl stops at the first unknown name: what only some Macs know stands last, or in its own call.
    "sysctl": ("/usr/sbin/sysctl", *_SYSCTL_NAMES),
    "wired": ("/usr/sbin/sysctl", "iogpu.wired_limit_mb"),
    "sw_vers": ("sw_vers",),
    "displays": ("system_profiler", "SPDisplaysDataType", "-json"),
    "hardware": ("system_profiler", "SPHardwareDataType", "-json"),
    "identity": ("ioreg", "-rd1", "-c", "IOPlatformExpertDevice"),
}
_TWO_TIERS = 4  # the last generation whose second tier is efficiency cores even where macOS does not name the tiers
_RESIDENCY_SETS = 15  # the macOS from which Metal keeps a model's memory wired between passes
# OSThermalPressureLevel of <libkern/OSThermalNotification.h> on macOS, in the words of Apple's powermetrics.
_PRESSURE_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")


_TIME_LIMIT_S = 15.0  # system_profiler needs seconds on a busy machine
_CACHE_BYTES = 96 << 20  # the system-level cache of an Ultra, the largest of Apple's; no command names this Mac's own

Outputs = Mapping[str, str | None]  # name of a command -> what it printed, None when it could not be run
Cores = tuple[int, int]  # performance and efficiency


def run(command: Sequence[str]) -> str | None:
    """What the command printed, whatever its exit code (`sysctl` fails when one of many names is unknown)."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        # With a path and inherited descriptors Python spawns instead of forking: a process that holds tens of gigabytes
        # of weights would spend milliseconds on its page tables at every fork.
        done = subprocess.run(
            [path, *command[1:]], capture_output=True, timeout=_TIME_LIMIT_S, check=False, close_fds=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") or None


def read_facts() -> MachineFacts:
    """Ask this Mac."""
    outputs = {name: run(words) for name, words in FACT_COMMANDS.items()}
    return facts(outputs, mode=parse_power_mode(run(STATE_COMMANDS["power"])), variables=os.environ)


def largest_cache_bytes() -> int:
    """No cache of this Mac is larger."""
    return _CACHE_BYTES


def memory_bytes() -> int:
    """The memory of this Mac."""
    return psutil.virtual_memory().total


def logical_cores() -> int | None:
    """All cores of this Mac."""
    return psutil.cpu_count()


@functools.cache
def performance_cores() -> int | None:
    """Those of this Mac, counted as `facts` counts them, for whoever needs no more of it; one call of sysctl."""
    cores = parse_perf_levels(parse_sysctl(run(FACT_COMMANDS["sysctl"])))
    cores = cores or parse_number_processors(run(FACT_COMMANDS["hardware"]))
    return cores and cores[0]


def read_state() -> Conditions:
    """Ask this Mac; some tens of milliseconds."""
    return state({name: run(words) for name, words in STATE_COMMANDS.items()}, on_battery=on_battery())


def facts(outputs: Outputs, *, mode: int | None = None, variables: Mapping[str, str] | None = None) -> MachineFacts:
    """What the outputs of FACT_COMMANDS say of the machine, and why a field is missing."""
    values = parse_sysctl(outputs.get("sysctl")) | parse_sysctl(outputs.get("wired"))
    chip = values.get("machdep.cpu.brand_string") or None
    gpu_cores = parse_gpu_cores(outputs.get("displays"))
    cores = parse_perf_levels(values) or parse_number_processors(outputs.get("hardware"))
    peak, source = None, "the chip is not known"
    if chip:
        peak, source = chips.peak_bandwidth(chip, gpu_cores=gpu_cores, cpu_cores=cores and sum(cores))
    wired_mb = whole_number(values.get("iogpu.wired_limit_mb"))
    missing = {
        "chip": "sysctl gives no machdep.cpu.brand_string",
        "gpu_cores": "system_profiler names no Apple GPU with a core count",
        "performance_cores": "sysctl names no performance levels",
        "efficiency_cores": "sysctl names no performance levels",
        "wired_limit_bytes": "macOS decides (iogpu.wired_limit_mb is 0), and its rule is not published"
        if wired_mb == 0
        else "sysctl gives no iogpu.wired_limit_mb",
        "peak_bandwidth_gb_s": source,
    }
    environment = Environment(
        host="",
        os=parse_sw_vers(outputs.get("sw_vers")) or "",
        machine="",
        chip=chip,
        hardware_model=values.get("hw.model"),
        performance_cores=cores and cores[0],
        efficiency_cores=cores and cores[1],
        logical_cores=whole_number(values.get("hw.ncpu")),
        gpu_cores=gpu_cores,
        memory_bytes=whole_number(values.get("hw.memsize")),
        wired_limit_bytes=wired_mb * MIB if wired_mb else None,
        peak_bandwidth_gb_s=peak,
        peak_bandwidth_source=None if peak is None else source,
    )
    metal = sorted(f"{key}={value}" for key, value in (variables or {}).items() if key.startswith("GGML_METAL_"))
    settings = [environment.os.partition(" (")[0], *([] if mode is None else [f"powermode {mode}"]), *metal]
    environment = replace(environment, speed_settings=", ".join(filter(None, settings)) or None)
    identity = parse_platform_uuid(outputs.get("identity"))
    return MachineFacts(environment=environment, missing=missing, identity=identity)


def state(outputs: Outputs, *, on_battery: bool | None) -> Conditions:
    """What the outputs of STATE_COMMANDS say of this moment."""
    mode = parse_power_mode(outputs.get("power"))
    return Conditions(
        on_battery=on_battery,
        low_power_mode=None if mode is None else mode == 1,
        thermal_state=parse_pressure_level(outputs.get("pressure")),
    )


def parse_sysctl(text: str | None) -> dict[str, str]:
    """`name: value` lines as a mapping."""
    lines = (line.partition(":") for line in (text or "").splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in lines}


def parse_sw_vers(text: str | None) -> str | None:
    """`macOS 26.5 (25F71)`, or None."""
    values = parse_sysctl(text)
    if "ProductVersion" not in values:
        return None
    build = f" ({values['BuildVersion']})" if "BuildVersion" in values else ""
    return f"{values.get('ProductName', 'macOS')} {values['ProductVersion']}{build}"


def parse_perf_levels(values: Mapping[str, str]) -> Cores | None:
    """Cores by kind from hw.perflevelN, level 0 the fastest; unnamed levels only of chips known to have one of each."""
    levels = []
    for level in range(3):
        count = whole_number(values.get(f"hw.perflevel{level}.physicalcpu"))
        if count is not None:
            levels.append((values.get(f"hw.perflevel{level}.name"), count))
    if levels and all(name for name, _ in levels):
        slow = sum(count for name, count in levels if name == "Efficiency")
        return sum(count for _, count in levels) - slow, slow
    candidates = chips.bins(values.get("machdep.cpu.brand_string", ""))
    if len(levels) == 2 and any(chip.generation <= _TWO_TIERS for chip in candidates):
        return levels[0][1], levels[1][1]
    return None


def parse_number_processors(text: str | None) -> Cores | None:
    """Cores by kind from SPHardwareDataType: `proc total:P:E`, or `proc total:S:E:P` from macOS 26 on."""
    match = re.search(r'"number_processors"\s*:\s*"proc ([\d:]+)"', text or "")
    counts = [int(part) for part in match[1].split(":")] if match else []
    if len(counts) not in (3, 4):
        return None
    return sum((counts[1], *counts[3:])), counts[2]


def parse_gpu_cores(text: str | None) -> int | None:
    """Cores of Apple's GPU from SPDisplaysDataType."""
    try:
        cards = json.loads(text or "{}").get("SPDisplaysDataType", [])
    except (json.JSONDecodeError, AttributeError):
        return None
    for card in cards:
        if "Apple" in f"{card.get('spdisplays_vendor')} {card.get('sppci_model')}":
            return whole_number(card.get("sppci_cores"))
    return None


def parse_platform_uuid(text: str | None) -> str | None:
    """The machine's own identifier; it is only ever stored hashed."""
    match = re.search(r'"IOPlatformUUID" = "([^"]+)"', text or "")
    return match[1] if match else None


def parse_power_mode(text: str | None) -> int | None:
    """The energy mode in use, by `pmset -g`: 0 automatic, 1 low, 2 high power."""
    match = re.search(r"^\s*(?:low)?powermode\s+(\d+)\s*$", text or "", flags=re.MULTILINE)
    return int(match[1]) if match else None


def advice(environment: Environment) -> list[str]:
    """What about a Mac's system stands in the way of steady times, with what to do."""
    sentences = []
    version = re.match(r"macOS (\d+)", environment.os)
    if version and int(version[1]) < _RESIDENCY_SETS:
        sentences.append(
            f"macOS {version[1]} keeps nothing wired between passes: after a second's pause one takes 250 to 300 ms "
            f"more. macOS {_RESIDENCY_SETS} or later for steady times."
        )
    if environment.machine == "x86_64" and (environment.chip or "").startswith("Apple"):
        sentences.append("This Python was made for Intel and runs under Rosetta, where llama.cpp has no Metal.")
    return sentences


def parse_pressure_level(text: str | None) -> str | None:
    """The thermal pressure that notifyutil prints (it exits with 0 whatever happens): the name, then its level."""
    match = re.fullmatch(r"com\.apple\.system\.thermalpressurelevel (\d+)", (text or "").strip())
    level = int(match[1]) if match else len(_PRESSURE_LEVELS)
    return _PRESSURE_LEVELS[level] if level < len(_PRESSURE_LEVELS) else None

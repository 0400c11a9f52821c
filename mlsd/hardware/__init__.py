"""What machine this is, and in what state; a field that cannot be read is None, and `read_machine` says why."""

import contextlib
import functools
import hashlib
import os
import platform
import secrets
import sys
import uuid
from importlib import metadata
from types import ModuleType

import psutil
from msgspec.structs import replace

from mlsd import __version__
from mlsd.errors import InputError
from mlsd.folders import update_json, user_dir
from mlsd.hardware import darwin, linux
from mlsd.hardware.reading import MachineFacts
from mlsd.records import BackendInfo, Conditions, Environment

_MULTICAST = 1 << 40  # set by uuid.getnode when it found no hardware address and drew a random one


def read_environment(backend: BackendInfo | None = None) -> Environment:
    """The machine and the build; `backend` is what the engine says of llama.cpp, None when it was not asked."""
    return read_machine(backend).environment


def read_machine(backend: BackendInfo | None = None) -> MachineFacts:
    """The environment with a reason for every field that could not be read."""
    facts, conditions = _system().read_facts(), read_conditions()
    environment = replace(
        facts.environment,
        host=host_key(facts.identity),
        os=facts.environment.os or f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        backend=backend.backend if backend else None,
        device=backend.device if backend else None,
        power_source=None if conditions.on_battery is None else "battery" if conditions.on_battery else "ac",
        low_power_mode=conditions.low_power_mode,
        thermal_state=conditions.thermal_state,
        mlsd_version=__version__,
        llama_cpp_python_version=backend.binding_version if backend else _installed("llama-cpp-python"),
        llama_cpp_build=backend.build if backend else None,
        python_version=platform.python_version(),
    )
    missing = _reasons(environment, facts.missing, has_engine=backend is not None)
    return MachineFacts(environment=environment, missing=missing)


def _system() -> ModuleType:
    return darwin if sys.platform == "darwin" else linux


def read_conditions() -> Conditions:
    """The machine at this moment: some milliseconds, a few tens on macOS; never inside a timed region."""
    state: Conditions = _system().read_state()
    return replace(
        state,
        load_1min=os.getloadavg()[0],
        available_bytes=psutil.virtual_memory().available,
        swap_used_bytes=psutil.swap_memory().used,
    )


def memory_bytes() -> int:
    """The memory of this machine that programs here may take."""
    n_bytes: int = _system().memory_bytes()
    return n_bytes


def logical_cores() -> int:
    """The cores that threads here may run on; what shares a core with another one counts."""
    cores: int | None = _system().logical_cores()
    return cores or 1


def performance_cores() -> int:
    """The fast ones of them, or all where the machine does not tell them apart."""
    cores: int | None = _system().performance_cores()
    return cores or logical_cores()


def largest_cache_bytes() -> int | None:
    """The largest cache between a core and the memory (what is smaller is not read from memory twice), if known."""
    n_bytes: int | None = _system().largest_cache_bytes()
    return n_bytes


def machine_ns() -> int:
    """Processor time that all programs of this machine have used since it started."""
    times = psutil.cpu_times()
    return round((times.user + times.nice + times.system) * 1e9)


def host_key(identity: str | None) -> str:
    """A stable hash (16 hex digits) of the machine's identifier, else of its address or name and a user's secret."""
    if identity is None:
        node = uuid.getnode()
        identity = f"{_secret()} {platform.node() if node & _MULTICAST else f'{node:012x}'}"
    return hashlib.sha256(f"mlsd host {identity}".encode()).hexdigest()[:16]


@functools.cache
def _secret() -> str:
    """Random text kept in the user's folder; where it cannot be kept, another one for each process."""
    kept = {"secret": secrets.token_hex(16)}

    def change(stored: dict[str, str]) -> None:
        kept.update(stored)
        stored.update(kept)

    with contextlib.suppress(InputError):
        update_json(user_dir() / "host.json", dict[str, str], change, damaged_is_empty=True)
    return kept["secret"]


def _reasons(environment: Environment, given: dict[str, str], *, has_engine: bool) -> dict[str, str]:
    engine = "the engine does not say" if has_engine else "the engine was not asked"
    reasons = {
        "backend": engine,
        "device": engine,
        "llama_cpp_build": engine,
        "llama_cpp_python_version": "llama-cpp-python is not installed",
        "power_source": "the machine reports no power supply",
        "low_power_mode": "the machine has no such setting",
        "thermal_state": "the system does not report one",
        "peak_bandwidth_source": "no peak is known",
        **given,
    }
    fields = environment.__struct_fields__
    return {name: reasons.get(name, "could not be read") for name in fields if getattr(environment, name) is None}


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

"""How much memory models may take on a machine: what its device says, or what was published of such machines."""

import sys
from typing import Literal

from mlsd.hardware import memory_bytes
from mlsd.records import Environment, Record
from mlsd.units import GIB, MIB, format_bytes

# llama.cpp prints `recommendedMaxWorkingSetSize`; the least that was published for each size of Mac: 11,453 MB of
# 16 GiB, 17,180 of 24 and 22,907 of 32 are two thirds, 38,655 of 48, 51,540 of 64 and 103,079 of 128 three quarters.
# Newer chips and systems give up to 84 % (12,713 of 16, 40,201 of 48, 115,449 of 128).
_SMALL_MAC_BYTES, _SMALL_SHARE, _LARGE_SHARE = 32 * GIB, 2 / 3, 3 / 4
_RAISED_SHARE = 0.8  # of a Mac's memory up to which the wired limit may be raised: the rest is the system's
_STEP_BYTES = 500 * MIB
_CPU_SHARE = 0.9


Fit = Literal["fits", "tight", "raise the limit", "does not fit", "unknown"]


class MemoryBudget(Record, frozen=True, kw_only=True):
    """Bytes for weights, contexts and buffers together."""

    limit_bytes: int  # as the machine stands
    most_bytes: int  # with a Mac's wired limit raised; of a CPU with nothing left for anybody else
    basis: str  # where the limit comes from
    can_raise: bool = False  # `wired_limit_command` does


def mac_budget(memory_bytes: int, limit_bytes: int | None = None, basis: str = "") -> MemoryBudget:
    """The budget of a Mac; without a limit that it states, what was published of Macs of that size."""
    if limit_bytes is None:
        share = _SMALL_SHARE if memory_bytes <= _SMALL_MAC_BYTES else _LARGE_SHARE
        limit_bytes, basis = int(memory_bytes * share), f"published of Macs with {memory_bytes / GIB:.0f} GB"
    most = max(limit_bytes, int(memory_bytes * _RAISED_SHARE) // _STEP_BYTES * _STEP_BYTES)
    return MemoryBudget(limit_bytes=limit_bytes, most_bytes=most, basis=basis, can_raise=True)


def memory_budget(environment: Environment, device_bytes: int | None = None) -> MemoryBudget | None:
    """The budget of a machine whose device states `device_bytes`; None where its memory is not known."""
    memory, backend = environment.memory_bytes, environment.backend
    if backend not in (None, "CPU", "Metal"):
        if device_bytes is None:
            return None
        return MemoryBudget(limit_bytes=device_bytes, most_bytes=device_bytes, basis="what the device states")
    if memory is None:
        return None
    if environment.os.startswith("macOS") and backend != "CPU":
        if environment.wired_limit_bytes is not None:
            return mac_budget(memory, min(environment.wired_limit_bytes, memory), "iogpu.wired_limit_mb as it is set")
        if backend == "Metal" and device_bytes is not None:
            return mac_budget(memory, device_bytes, "the working set that Metal recommends")
        return mac_budget(memory)
    return _host(memory)


def host_budget() -> MemoryBudget:
    """The budget of this machine where its device was not asked."""
    memory = memory_bytes()
    return mac_budget(memory) if sys.platform == "darwin" else _host(memory)


def _host(memory: int) -> MemoryBudget:
    basis = f"{_CPU_SHARE:.0%} of {format_bytes(memory)}"
    return MemoryBudget(limit_bytes=int(memory * _CPU_SHARE), most_bytes=memory, basis=basis)


def fit(total: int | None, least: int | None, budget: MemoryBudget | None) -> tuple[Fit, str]:
    """Whether so many bytes fit, or at least these with one arm open at a time; and why."""
    if budget is None or total is None or least is None:
        return "unknown", "the memory for models is not known"
    limit = f"{format_bytes(budget.limit_bytes)} may be used"
    if total <= budget.limit_bytes:
        return "fits", limit
    if least <= budget.limit_bytes:
        return "tight", f"{limit}: arms that are idle are closed"
    if least > budget.most_bytes:
        return "does not fit", f"{limit}, {format_bytes(budget.most_bytes)} at most"
    if budget.can_raise:
        closed = "; arms that are idle are closed then" if total > budget.most_bytes else ""
        return "raise the limit", f"{limit}: first `{wired_limit_command(budget)}` (until the Mac restarts){closed}"
    return "tight", f"{limit}, {format_bytes(budget.most_bytes)} at most: arms that are idle are closed"


def wired_limit_command(budget: MemoryBudget) -> str:
    """What lets the GPU of a Mac hold the most it should, until it restarts."""
    return f"sudo sysctl iogpu.wired_limit_mb={budget.most_bytes // MIB}"

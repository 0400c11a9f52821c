"""How much memory models may take on a machine: the part that is safe, and the most there can be."""

from __future__ import annotations

from mlsd.records import Environment, Record

# What macOS lets the GPU hold by default is not published and differs between Macs; llama.cpp and MLX were seen to
# report 67 % (M1, 16 GB) to 84 % (M5 Max, 128 GB) of memory.
_MAC_SAFE, _MAC_MOST = 0.65, 0.85
_CPU_SAFE, _CPU_MOST = 0.85, 1.0  # the rest is for the system, contexts and buffers


class MemoryBudget(Record, frozen=True, kw_only=True):
    """Bytes for model weights; contexts and buffers are allowed for in `safe_bytes`."""

    safe_bytes: int
    most_bytes: int
    basis: str  # what it was computed from


def memory_budget(environment: Environment) -> MemoryBudget | None:
    """The budget of a machine; None where its memory is not known, or lies on a GPU that does not tell."""
    if environment.memory_bytes is None or environment.backend not in (None, "CPU", "Metal"):
        return None
    memory = environment.memory_bytes
    if environment.wired_limit_bytes is not None:
        limit = min(environment.wired_limit_bytes, memory)
        safe = int(limit * _CPU_SAFE)
        return MemoryBudget(
            safe_bytes=safe, most_bytes=limit, basis="the wired limit that is set (iogpu.wired_limit_mb)"
        )
    if environment.os.startswith("macOS"):
        shares, basis = (_MAC_SAFE, _MAC_MOST), "the memory, of which macOS gives the GPU 67 to 84 %"
    else:
        shares, basis = (_CPU_SAFE, _CPU_MOST), "the memory of the machine"
    safe, most = (int(memory * share) for share in shares)
    return MemoryBudget(safe_bytes=safe, most_bytes=most, basis=basis)

"""From how many rows on a build of llama.cpp uses another Metal kernel: what T(k) has steps at.

Pure. The steps belong to a range of builds: results of builds on different sides of `VERIFICATION_KERNELS` answer
"should I switch it on?" differently, and their runs have different environment keys, so that nothing pools them.
"""

from __future__ import annotations

import re

from mlsd.records import Record

# llama.cpp 29869, "metal : few-row MMA mat-mul": kernels of 2 to 16 rows for verification, on M1 to M4.
VERIFICATION_KERNELS = 11404
SHIPPED = "0c1e570"  # the commit of 0.3.36 of llama-cpp-python, which is known by it alone


class KernelSteps(Record, frozen=True, kw_only=True):
    """Where a build's Metal kernels change."""

    rows: tuple[int, ...]  # the first row count of each kernel
    side: str  # which builds have them, in words
    source: str


# Vector to extended vector kernels (2, for K-quants 4, again 6), matrix kernels (9), attention (20), experts (32, 33).
_OLD = KernelSteps(
    rows=(2, 4, 6, 9, 20, 32, 33),
    side=f"before b{VERIFICATION_KERNELS}: matrix kernels from 9 rows on, none made for verification",
    source="ggml-metal-ops.cpp and ggml-metal-device.cpp of 0c1e570",
)
# Few-row matrix kernels from 2 (Q4_0, Q4_1, Q8_0, Q5_K, Q6_K), 3 (F16, Q4_K, Q5_0, Q5_1) or 6 (F32) rows; the wide ones
# above 16; attention and experts as before.
_NEW = KernelSteps(
    rows=(2, 3, 6, 17, 20, 32, 33),
    side=f"since b{VERIFICATION_KERNELS}: matrix kernels of 2 to 16 rows, made for verification",
    source="llama.cpp 29869, present in b11434",
)


def build_of(text: str | None) -> int | None:
    """The number of a build in what an environment says of it (`b11524 86a2835-dirty`); None: it has none."""
    found = re.match(r"b(\d{4,6})\b", text or "")
    return int(found.group(1)) if found else None


def metal_steps(build: str | None, device: str | None = None) -> KernelSteps | None:
    """The steps of a build, as `Environment.llama_cpp_build` names it, on a chip; None: nobody knows which build it is.

    The M5 and later keep the kernels that they had.
    """
    number = build_of(build)
    chip = re.search(r"\bM(\d+)\b", device or "")
    if (build or "").startswith(SHIPPED) or (number is not None and number < VERIFICATION_KERNELS):
        return _OLD
    if number is None:
        return None
    return _OLD if chip is not None and int(chip.group(1)) >= 5 else _NEW

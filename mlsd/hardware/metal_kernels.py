"""From how many rows on a build of llama.cpp uses another Metal kernel: what T(k) has steps at.

Pure. The steps belong to a range of builds: results of builds on different sides of `VERIFICATION_KERNELS` answer
"should I switch it on?" differently, and their runs have different environment keys, so that nothing pools them.
"""

import re

from mlsd.records import Record

VERIFICATION_KERNELS = 11404  # llama.cpp 29869, "metal : few-row MMA mat-mul"
SHIPPED = "0c1e570"  # the commit of 0.3.36 of llama-cpp-python, which is known by it alone
_BUILDS = {"86a2835": 11524, "0ce8cd1": 11739}  # by commit: mineru's and LM Studio's servers say "b1-86a2835"


class KernelSteps(Record, frozen=True, kw_only=True):
    """Where a build's Metal kernels change."""

    rows: tuple[int, ...]  # the first row count of each kernel
    side: str  # which builds have them, in words


# Vector to extended vector kernels (2, for K-quants 4, again 6), matrix kernels (9), attention (20), experts (32, 33):
# ggml-metal-ops.cpp and ggml-metal-device.cpp of 0c1e570.
_OLD = KernelSteps(
    rows=(2, 4, 6, 9, 20, 32, 33),
    side=f"before b{VERIFICATION_KERNELS}: matrix kernels from 9 rows on, no kernels for verification",
)
# From how many rows on, up to 16, weights of a type take the few-row matrix kernels: the jump table of
# `ggml_metal_op_mul_mat_use_mma` in b11524's Metal library. Its dispatch asks for Apple7 alone, so for every M, the M5
# included; b11739's is the same, and takes matrix kernels of experts for at most 1,024 experts.
FEW_ROWS = {
    "F32": 6,
    "TQ2_0": 5,
    "BF16": 4,
    **dict.fromkeys(("F16", "Q4_K", "Q5_0", "Q5_1", "Q2_K", "Q2_0", "IQ4_NL", "MXFP4"), 3),
    **dict.fromkeys(("Q4_0", "Q4_1", "Q8_0", "Q5_K", "Q6_K", "Q3_K", "Q1_0"), 2),
    **dict.fromkeys((f"IQ{name}" for name in ("1_S", "1_M", "2_XXS", "2_XS", "2_S", "3_XXS", "3_S", "4_XS")), 2),
}
# Two tiles of 8 rows from 9, the wide matrix kernels from 17; attention and experts as before.
_NEW = KernelSteps(
    rows=(*sorted(set(FEW_ROWS.values())), 9, 17, 20, 32, 33),
    side=f"since b{VERIFICATION_KERNELS}: matrix kernels of 2 to 16 rows, made for verification",
)


def build_of(text: str | None) -> int | None:
    """The number of a build in what a program says of it (`b11524 86a2835-dirty`, `b1-86a2835`); None: unknown."""
    match = re.match(r"b(\d{4,6})\b", text or "")
    if match:
        return int(match.group(1))
    commit = re.search(r"\b[0-9a-f]{7}", text or "")
    return _BUILDS.get(commit.group()) if commit else None


def metal_steps(build: str | None) -> KernelSteps | None:
    """The steps of a build, as `Environment.llama_cpp_build` names it; None: the build is not known."""
    number = build_of(build)
    if (build or "").startswith(SHIPPED) or (number is not None and number < VERIFICATION_KERNELS):
        return _OLD
    return None if number is None else _NEW

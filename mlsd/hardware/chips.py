"""Apple's chips: published peak memory bandwidth and GPU cores, by bin.

The brand string does not separate bins of one name, so a bin is chosen by its GPU cores, else by its CPU cores. Where
neither decides, or no confirmed figure was published, the bandwidth is None.
"""

import re
from collections.abc import Sequence
from typing import Any

from mlsd.errors import choose
from mlsd.records import Record

_APPLE = "Apple, technical specifications of the Mac models with this chip"
_UNCONFIRMED = "no confirmed figure: tables and reports give 800, 1000 and 1200 GB/s"


class Chip(Record, frozen=True, kw_only=True):
    """One bin of one chip."""

    name: str  # as machdep.cpu.brand_string gives it
    gpu_cores: int
    cpu_cores: int | None = None  # where the CPU tells this bin's bandwidth from another's
    peak_bandwidth_gb_s: float | None
    max_memory_gib: int | None = None  # the most that was sold
    least_memory_gib: int = 8  # the least
    sizes_gib: tuple[int, ...] = ()  # every memory that was sold, where that tells this bin from another
    source: str = _APPLE

    @property
    def family(self) -> str:
        """The word of its name that tells its generation: ``m5``, ``a18``."""
        return self.name.split()[1].lower()

    @property
    def generation(self) -> int:
        """That of its GPU: 1 for an M1."""
        return _OTHER_GENERATIONS.get(self.family) or int(self.family[1:])

    @property
    def is_ultra(self) -> bool:
        return self.name.endswith("Ultra")


_OTHER_GENERATIONS = {"a18": 4}  # of chips that no M names


MACS_GIB = (8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512)
# The least memory of Macs with a chip, by the word behind its M, and by its generation where that differs.
_LEAST_GIB = {"": 8, "Pro": 16, "Max": 32, "Ultra": 64}
_LEAST_OF = {
    "M3 Pro": 18,
    "M3 Max": 36,
    "M3 Ultra": 96,
    **{f"{m}{word}": gib for m in ("M4", "M5") for word, gib in (("", 16), (" Pro", 24), (" Max", 36))},
}


def _bins(name: str, gpu_cores: Sequence[int], peak_gb_s: float | None, max_gib: int, **more: Any) -> tuple[Chip, ...]:
    short = name.removeprefix("Apple ")
    least = _LEAST_OF.get(short, _LEAST_GIB.get(short.partition(" ")[2], 8))
    about = {"peak_bandwidth_gb_s": peak_gb_s, "max_memory_gib": max_gib, "least_memory_gib": least, **more}
    return tuple(Chip(name=name, gpu_cores=n, **about) for n in gpu_cores)


CHIPS: tuple[Chip, ...] = (
    *_bins("Apple M1", (7, 8), 68.2, 16),
    *_bins("Apple M1 Pro", (14, 16), 200, 32),
    *_bins("Apple M1 Max", (24, 32), 400, 64),
    *_bins("Apple M1 Ultra", (48, 64), 800, 128),
    *_bins("Apple M2", (8, 10), 100, 24),
    *_bins("Apple M2 Pro", (16, 19), 200, 32),
    *_bins("Apple M2 Max", (30, 38), 400, 96),
    *_bins("Apple M2 Ultra", (60, 76), 800, 192),
    *_bins("Apple M3", (8, 10), 100, 24),
    *_bins("Apple M3 Pro", (14, 18), 150, 36),
    *_bins("Apple M3 Max", (30,), 300, 128, cpu_cores=14, sizes_gib=(36, 96)),
    *_bins("Apple M3 Max", (40,), 400, 128, cpu_cores=16, sizes_gib=(48, 64, 128)),
    *_bins("Apple M3 Ultra", (60, 80), 819, 512),
    *_bins("Apple M4", (8, 10), 120, 32),
    *_bins("Apple M4 Pro", (16, 20), 273, 64),
    *_bins("Apple M4 Max", (32,), 410, 128, cpu_cores=14, sizes_gib=(36,)),
    *_bins("Apple M4 Max", (40,), 546, 128, cpu_cores=16, sizes_gib=(48, 64, 128)),
    *_bins("Apple M5", (10,), 153.6, 32),
    *_bins("Apple M5 Pro", (20,), 307, 64),
    *_bins("Apple M5 Max", (32,), 460, 128),
    *_bins("Apple M5 Max", (40,), 614, 128),
    *_bins("Apple M5 Ultra", (80,), None, 512, source=_UNCONFIRMED),
    *_bins("Apple A18 Pro", (5,), 60, 8),
)


# hw.model of every MacBook Air with Apple silicon, M1 to M5, and of the MacBook Neo (Mac17,5): Apple's pages "Identify
# your Mac model", as voyager-software/DeviceLookup 2026.11.0 and Shakshi3104/DeviceHardware on GitHub have them.
_NO_FAN = (
    *("MacBookAir10,1", "Mac14,2", "Mac14,15", "Mac15,12", "Mac15,13", "Mac16,12", "Mac16,13", "Mac17,3", "Mac17,4"),
    "Mac17,5",
)


def has_no_fan(hardware_model: str | None) -> bool:
    """Whether a Mac cools itself by its case alone; a name that holds MacBookAir always does."""
    return hardware_model is not None and (hardware_model in _NO_FAN or "MacBookAir" in hardware_model)


_NAMED = re.compile(
    r"(?:(?<=apple-)|(?<![a-z0-9.-]))([am]\d+)(?:[ -]*(pro|max|ultra))?"
    r"(?![a-z0-9]|\.\d)(?![ -]+(?:pro|max|ultra)[a-z]\b)"  # a letter too many is no plain M4
)
_MEMORY = re.compile(r"(\d+) ?gi?b(?![a-z/])")
_CORES = re.compile(r"(?<![a-z0-9])(\d{1,2})[- ]?(?:c(?:ores?)?|gpu)(?![a-z])")


def bins(name: str) -> tuple[Chip, ...]:
    """Every bin of a chip as people write it: ``M5 Max``, ``MacBook Pro M5 Max``, ``M5 Max (40-core)``.

    Empty for an unknown chip, and for one with more memory than was sold with it: people write M1 for an M1 Max.
    """
    text = name.lower()
    named = _NAMED.search(text)
    if named is None:
        return ()
    wanted = f"apple {named[1]} {named[2] or ''}".strip()
    memory = max(map(int, _MEMORY.findall(text)), default=0)
    candidates = tuple(c for c in CHIPS if c.name.lower() == wanted and memory <= (c.max_memory_gib or memory))
    cores = set(map(int, _CORES.findall(text)))
    by_gpu = tuple(chip for chip in candidates if chip.gpu_cores in cores)
    by_cpu = tuple(chip for chip in candidates if chip.cpu_cores in cores)
    return by_gpu or by_cpu or tuple(chip for chip in candidates if memory in chip.sizes_gib) or candidates


def with_known_peak() -> list[str]:
    """The chips of whose memory a bandwidth is known, by short name."""
    return list(dict.fromkeys(chip.name.removeprefix("Apple ") for chip in CHIPS if chip.peak_bandwidth_gb_s))


def named_chip(text: str) -> str | None:
    """The chip that a text names, as it is called here, with the GPU cores where the text decides; None for none."""
    candidates = bins(text)
    if not candidates:
        return None
    name = candidates[0].name.removeprefix("Apple ")
    of_name = [chip for chip in CHIPS if chip.name == candidates[0].name]
    return f"{name} {candidates[0].gpu_cores}-core" if len(candidates) == 1 < len(of_name) else name


def peak_bandwidth(
    name: str, *, gpu_cores: int | None = None, cpu_cores: int | None = None
) -> tuple[float | None, str]:
    """The published peak memory bandwidth of a chip, in GB/s (10^9), and where it stands; core counts decide where bins
    differ. Or None, and why.
    """
    of_name = bins(name)
    if not of_name:
        names = dict.fromkeys(chip.name.removeprefix("Apple ") for chip in CHIPS)
        return None, f"no chip of that name is known. {choose(name, names).removesuffix('.')}"
    chosen = [chip for chip in of_name if chip.gpu_cores == gpu_cores]
    if gpu_cores is None and cpu_cores is not None:
        chosen = [chip for chip in of_name if chip.cpu_cores == cpu_cores]
    if len({chip.peak_bandwidth_gb_s for chip in of_name}) == 1:  # as many cores or so much memory leave no other
        chosen = [of_name[0]]
    if len(chosen) != 1:
        figures = " or ".join(f"{chip.peak_bandwidth_gb_s:g} GB/s ({chip.gpu_cores} GPU cores)" for chip in of_name)
        return None, f"{name} has {figures}; the core counts do not decide"
    return chosen[0].peak_bandwidth_gb_s, chosen[0].source

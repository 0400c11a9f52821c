"""The largest cache between a core and the memory: what is smaller is not read from memory twice."""

import sys
from collections.abc import Iterable
from pathlib import Path

_LINUX = Path("/sys/devices/system/cpu/cpu0/cache")
_APPLE_BYTES = 96 << 20  # the system-level cache of an Ultra, the largest of Apple's; no command names this Mac's own
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def largest_cache_bytes() -> int | None:
    """Of this machine; None where it does not say."""
    if sys.platform == "darwin":
        return _APPLE_BYTES
    return largest(file.read_text(encoding="ascii") for file in _LINUX.glob("index*/size"))


def largest(sizes: Iterable[str]) -> int | None:
    """The largest of sizes as Linux writes them, like ``32768K``; None of none."""
    known = (text.strip() for text in sizes)
    found = [int(text[:-1]) * _UNITS[text[-1]] for text in known if text[-1:] in _UNITS and text[:-1].isdigit()]
    return max(found, default=None)

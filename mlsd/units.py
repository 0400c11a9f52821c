"""Unit conversions and their printed form: GB and GB/s are decimal (10^9), GiB is binary (2^30)."""

import shlex
from collections.abc import Sequence

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
GB = 1_000_000_000
GIB = 1 << 30
MIB = 1 << 20

NOT_MEASURED = "-"
_SMALLER = (("kB", 1_000), ("MB", 1_000_000))


def tok_s(n_tokens: int, wall_ns: int) -> float | None:
    """Tokens per second, or None when no time or no token was measured."""
    if wall_ns <= 0 or n_tokens <= 0:
        return None
    return n_tokens * NS_PER_S / wall_ns


def format_bytes(n_bytes: int | None) -> str:
    """A size for people: ``22.02 GB`` (decimal units, two digits)."""
    if n_bytes is None:
        return NOT_MEASURED
    if n_bytes < 1_000:
        return f"{n_bytes} B"
    unit, size = next((each for each in _SMALLER if round(n_bytes / each[1], 2) < 1_000), ("GB", GB))
    return f"{n_bytes / size:.2f} {unit}"


def format_duration(seconds: float | None) -> str:
    """A duration for people: ``1 h 02 min``, ``3 min 20 s``, ``4.2 s`` or ``850 ms``."""
    if seconds is None:
        return NOT_MEASURED
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_number(value: float | None, digits: int = 2) -> str:
    """A plain number, or a dash when it was not measured."""
    return NOT_MEASURED if value is None else f"{value:.{digits}f}"


def format_percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction printed as per cent, or a dash when it was not measured."""
    return NOT_MEASURED if fraction is None else f"{100 * fraction:.{digits}f} %"


def as_ranges(numbers: Sequence[int]) -> str:
    """Ascending whole numbers for people: ``0-9,20``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def counted(n: int, noun: str) -> str:
    """A number with its noun: ``1 suite``, ``2 suites``."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def quoted(value: object) -> str:
    """A word of a command that somebody may copy: whatever an id or a path holds, the shell sees one word."""
    return shlex.quote(str(value))

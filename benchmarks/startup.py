"""What `mlsd --help` costs, against importing click alone."""

import resource
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.harness import Result, interleaved, of_samples, ratios

REPEATS = 15


def run() -> Iterator[Result]:
    arms = {
        "help": lambda: _cpu_s([sys.executable, "-m", "mlsd", "--help"]),
        "click": lambda: _cpu_s([sys.executable, "-c", "import click"]),
    }
    figures = interleaved(arms, REPEATS)
    yield of_samples("mlsd --help, CPU time", figures["help"], "s", at_most=0.2)
    yield of_samples("mlsd --help over `import click`, CPU time", ratios(figures["help"], figures["click"]), "ratio")


def _cpu_s(command: list[str]) -> float:
    """User and system time of a child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)

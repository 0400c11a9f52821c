"""How far mlsd's verdicts can be trusted: every part of the truth in one table.

Each part simulates honest data and data that lies, and says how often each verdict is wrong.
"""

import importlib
from collections.abc import Iterator

from benchmarks.harness import Result

PARTS = ("truth_audit", "truth_spoiled", "truth_losslessness", "truth_intervals")


def run() -> Iterator[Result]:
    """All figures of all parts."""
    for part in PARTS:
        yield from importlib.import_module(f"benchmarks.{part}").run()

"""Ten thousand mutated inputs of every kind through the command line: no traceback, hang, orphan or file outside.

``python -m benchmarks.hostile [CASES [KIND ...]]`` prints the counts by kind; the short version is `tests/hostile`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Result
from tests.hostile.attack import KINDS, Range, attack

N_CASES = 10_000
# What a kind's share is; those that load a model or open a database take seconds each, the rest milliseconds.
SHARES = {
    "gguf in llama.cpp": 0.02, "weights": 0.01, "database": 0.06, "hub": 0.08,
    "server": 0.2, "lab messages": 0.03, "split gguf": 0.05, "mlsd.toml": 0.05, "environment": 0.04, "builds": 0.03,
}  # fmt: skip
_FIRST_SEED = 1_000_000  # apart from those of the tests


def run(n_cases: int = N_CASES, kinds: Sequence[str] = (), first: int = _FIRST_SEED) -> Iterator[Result]:
    rest = (1 - sum(SHARES.values())) / (len(KINDS) - len(SHARES))
    with tempfile.TemporaryDirectory() as folder:
        place = Range(Path(folder))
        for kind in kinds or KINDS:
            n = max(1, round(n_cases * SHARES.get(kind, rest)))
            outcome = attack(kind, range(first, first + n), place)
            for fault in outcome.faults:
                print(fault, file=sys.stderr)
            codes = ", ".join(f"{count} x exit {code}" for code, count in sorted(outcome.codes.items()))
            n_faults = len(outcome.faults)
            name = f"{kind}: faults in {outcome.n_cases} cases ({codes})"
            yield Result(name, n_faults, n_faults, n_faults, "count", "= 0", n_faults == 0)


if __name__ == "__main__":
    missed = False
    for result in run(int(sys.argv[1]) if len(sys.argv) > 1 else N_CASES, sys.argv[2:]):
        print(f"{result.name}: {result.value:g}", flush=True)
        missed |= not result.passed
    raise SystemExit(missed)

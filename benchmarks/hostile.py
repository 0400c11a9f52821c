"""Ten thousand mutated inputs of every kind through the command line: no traceback, hang, orphan or file outside.

MLSD_BENCH_CASES sets how many, MLSD_BENCH_KINDS which (comma-separated). Every kind takes its turns, so that a run that
`--budget-s` ends has tried some of each. The short version is `tests/hostile`.
"""

import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result, counted
from tests.hostile.attack import KINDS, Outcome, Range, attack

N_CASES = int(os.environ.get("MLSD_BENCH_CASES", "10000"))
# What a kind's share is; those that load a model or open a database take seconds each, the rest milliseconds.
SHARES = {
    "gguf in llama.cpp": 0.02, "weights": 0.01, "database": 0.06, "hub": 0.08,
    "server": 0.2, "split gguf": 0.05, "environment": 0.04,
}  # fmt: skip
_REST = (1 - sum(SHARES.values())) / (len(KINDS) - len(SHARES))
_FIRST_SEED = 1_000_000  # apart from those of the tests
_N_TURNS = 50


def run(budget_s: float = math.inf) -> Iterator[Result]:
    started = time.monotonic()
    kinds = [kind for kind in os.environ.get("MLSD_BENCH_KINDS", "").split(",") if kind] or list(KINDS)
    found = {kind: Outcome(kind) for kind in kinds}
    wanted = {kind: max(1, round(N_CASES * SHARES.get(kind, _REST))) for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        place = Range(Path(folder))
        for turn, kind in itertools.product(range(_N_TURNS), kinds):
            if time.monotonic() > started + budget_s:
                break
            first, last = (_FIRST_SEED + wanted[kind] * part // _N_TURNS for part in (turn, turn + 1))
            within = itertools.takewhile(lambda _: time.monotonic() < started + budget_s, range(first, last))
            made = attack(kind, within, place)
            found[kind].add(made)
            for fault in made.faults:
                print(fault, file=sys.stderr)
            if kind == kinds[-1]:
                n_tried = sum(one.n_cases for one in found.values())
                print(f"hostile: {n_tried} cases, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    for kind, outcome in found.items():
        codes = ", ".join(f"{count} x exit {code}" for code, count in sorted(outcome.codes.items()))
        name = f"{kind}: faults in {outcome.n_cases} of {wanted[kind]} cases ({codes})"
        yield counted(name, len(outcome.faults), "= 0", not outcome.faults)
    n_tried, n_wanted = sum(one.n_cases for one in found.values()), sum(wanted.values())
    yield counted("inputs tried", n_tried, f">= {n_wanted}", n_tried >= n_wanted)

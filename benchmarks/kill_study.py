"""Kill -9 of the runner or its worker 50 times over a suite: nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result
from mlsd.gguf_tools.perturb import perturb
from mlsd.gguf_tools.shapes import TINY
from mlsd.gguf_tools.write import write_random
from tests.measure.kill_script import run_study
from tests.measure.test_runner import finished_trials, kill_at_random

N_KILLS = 50


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["MLSD_CACHE"] = str(folder / "cache")
        for model in ("qwen35", "llama"):
            write_random(folder / f"{model}.gguf", TINY[model], seed=1)
            perturb(folder / f"{model}.gguf", folder / f"{model}-noise01.gguf", noise=0.01)
        run_study(folder, folder / "whole.sqlite")
        hits = 0
        for part in range(N_KILLS // 5):  # every study is killed five times, then finished and compared
            database = folder / f"killed{part}.sqlite"
            hits += kill_at_random(folder, database, n_kills=5, rng=random.Random(part))
            run_study(folder, database)
            same = finished_trials(database) == finished_trials(folder / "whole.sqlite")
            if not same:
                yield Result("databases equal to an uninterrupted one", 0, 0, 1, "share", "= 1", False)
                return
    yield Result("processes killed while alive", hits, hits, hits, "count")
    yield Result("databases equal to an uninterrupted one", 1, 1, 1, "share", "= 1", True)

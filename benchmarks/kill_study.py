"""Kill -9 of the runner or its worker 50 times over a suite: nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result
from mlsd.gguf_tools.shapes import TINY
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.gguf_tools.synthetic.write import write_random
from tests.measure.kill_script import run_study
from tests.measure.run.test_runner import finished_trials, kill_at_random

N_KILLS = 50
KILLS_A_STUDY = 3


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["MLSD_CACHE"] = str(folder / "cache")
        for model in ("qwen35", "llama"):
            write_random(folder / f"{model}.gguf", TINY[model], seed=1)
            perturb(folder / f"{model}.gguf", folder / f"{model}-noise01.gguf", noise=0.01)
        run_study(folder, folder / "whole.sqlite")
        whole, hits, studies, equal = finished_trials(folder / "whole.sqlite"), 0, 0, 0
        while hits < N_KILLS:  # a study is hit a few times, then finished and compared; late blows do not count
            database = folder / f"killed{studies}.sqlite"
            hits += kill_at_random(folder, database, n_kills=KILLS_A_STUDY, rng=random.Random(studies))
            run_study(folder, database)
            studies += 1
            equal += finished_trials(database) == whole
    share = equal / studies
    yield Result("processes killed while alive", hits, hits, hits, "count", f">= {N_KILLS}", hits >= N_KILLS)
    yield Result(
        f"of {studies} databases equal to an uninterrupted one", share, share, share, "share", "= 1", share == 1
    )

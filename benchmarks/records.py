"""A record of 378 trials, its rounds as noisy as measured: its size, and the time to check it without models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result, of_samples
from benchmarks.report_scale import write_study
from mlsd.analysis.audit.verification import verify
from mlsd.formats.decode_again import decode_again
from mlsd.formats.record import write_record
from mlsd.store.store import Store

N_TRIALS, N_TOKENS = 378, 256


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        database, path = Path(folder) / "study.sqlite", Path(folder) / "study.record.gz"
        n_rounds = write_study(database, N_TRIALS, N_TOKENS)
        with Store.open(database, read_only=True) as store:
            write_record(store, path)
        yield of_samples(
            f"record of {N_TRIALS} trials, {n_rounds} rounds", [path.stat().st_size / 1e6], "MB", at_most=1.0
        )
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            found = verify(path, decode_again)
            seconds.append(time.perf_counter() - started)
            assert not found.problems, found.problems[:3]
        yield of_samples(f"checking a record of {N_TRIALS} trials without models", seconds, "s", at_most=10.0)

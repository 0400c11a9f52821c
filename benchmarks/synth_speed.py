"""Synthetic models: written about as fast as `dd` writes, in little memory, and as fast to run as the real model."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness import Result, interleaved, of_samples, ratios
from benchmarks.models import smollm2
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.session import SessionOptions
from mlsd.gguf_tools.shapes import FULL
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.synth import from_gguf, from_shape, write_synthetic

SHAPE, LAYERS, QUANT = "qwen3.5-35b-a3b", 2, "Q4_K"  # 1.5 GB: far more than the pools, little enough for a laptop
WRITES = 7
PASSES = 100
DEPTH = 64
WIDTHS = (1, 4, 16)
GIB = 1 << 30

# Writing happens in a process of its own, so that its peak memory is its own.
CHILD = """
import json, os, resource, sys, time
from functools import partial
from pathlib import Path
from mlsd.gguf_tools.shapes import FULL
from mlsd.gguf_tools.synthetic.synth import from_shape, write_synthetic
shape, layers, quant, path = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
started = time.perf_counter()
write_synthetic(path, from_shape(FULL[shape], quant=quant, n_layers=layers))
with path.open("rb") as file:
    os.fsync(file.fileno())
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"seconds": seconds, "peak_bytes": peak}))
"""


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        yield from writing(Path(folder))
        yield from running(Path(folder))


def writing(folder: Path) -> Iterator[Result]:
    """Bytes a second through `mlsd models make synth`, over `dd` from /dev/zero there; both end with fsync."""
    n_bytes = from_shape(FULL[SHAPE], quant=QUANT, n_layers=LAYERS).weight.total.n_bytes
    path, peaks = folder / "x.gguf", []

    def synth() -> float:
        arguments = [sys.executable, "-c", CHILD, SHAPE, str(LAYERS), QUANT, str(path)]
        report = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
        path.unlink()
        os.sync()
        peaks.append(report["peak_bytes"] / GIB)
        return float(n_bytes / report["seconds"])

    def dd() -> float:
        blocks = n_bytes >> 23
        started = time.perf_counter()
        command = ["dd", "if=/dev/zero", f"of={path}", "bs=8388608", f"count={blocks}", "conv=fsync"]
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - started
        path.unlink()
        os.sync()
        return (blocks << 23) / seconds

    figures = interleaved({"synth": synth, "dd": dd}, WRITES)
    yield of_samples("synth writes, GB/s", [x / 1e9 for x in figures["synth"]], "GB/s")
    yield of_samples("dd writes, GB/s", [x / 1e9 for x in figures["dd"]], "GB/s")
    yield of_samples("synth over dd, bytes a second", ratios(figures["synth"], figures["dd"]), "ratio", at_least=0.6)
    yield of_samples("peak memory of synth", peaks, "GiB", at_most=1.0)


def running(folder: Path) -> Iterator[Result]:
    """T(k) of a synthetic SmolLM2 (shape and types of the real file), over T(k) of the real one."""
    path, copy = folder / "made.gguf", folder / "real.gguf"
    write_synthetic(path, from_gguf(Source(smollm2())))
    # How a file came into the page cache changes a pass by 1 or 2 %, so both are written just before.
    shutil.copy(smollm2(), copy)
    options = SessionOptions(n_ctx=256, n_threads=1, max_outputs=max(WIDTHS))
    with (
        LlamaModel(copy) as real_model,
        LlamaModel(path) as made_model,
        open_session(real_model, options) as real,
        open_session(made_model, options) as made,
    ):
        for session in (real, made):
            session.decode(list(range(100, 100 + DEPTH)))
        for width in WIDTHS:
            arms = {"made": partial(pass_ns, made, width), "real": partial(pass_ns, real, width)}
            interleaved(arms, 3)
            figures = interleaved(arms, PASSES)
            # A pass now and then is interrupted; medians of ten neighbouring pairs leave it out of the spread.
            paired = ratios(figures["made"], figures["real"])
            groups = [statistics.median(paired[i : i + 10]) for i in range(0, PASSES, 10)]
            result = of_samples(f"T({width}), synthetic over real SmolLM2", groups, "ratio")
            yield Result(
                result.name, result.value, result.low, result.high, "ratio", "1 +- 0.03", abs(result.value - 1) <= 0.03
            )


def pass_ns(session: LlamaSession, width: int) -> float:
    """One pass over `width` tokens with as many outputs at a fixed depth."""
    started = time.perf_counter_ns()
    session.decode(list(range(300, 300 + width)), n_outputs=width)
    spent = time.perf_counter_ns() - started
    session.truncate(DEPTH)
    return float(spent)

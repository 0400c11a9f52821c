"""Where the time of a bench goes: shares of timed rounds, prefill, judging and the rest, with fresh caches and warm."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from benchmarks.harness import Result, percent
from mlsd.gguf_tools.shape import FULL
from mlsd.gguf_tools.synthetic.synth import from_shape, write_synthetic
from mlsd.trials.stages import MEASURING, StageTime, wall_ns

FRESH, AGAIN = 50.0, 70.0  # per cent of the worker's time that timed rounds take in a first session, and in the next
ONE_THREAD = ("--n-threads", "1", "--repeats", "3")
BENCHES: Mapping[str, tuple[str, ...]] = {
    "smollm2-135m + pld": (
        *("smollm2-135m", "--drafter", "pld", "--gamma", "8,16", "--prompt", "copy", "--n-predict", "96"),
        *ONE_THREAD,
    ),
    "tiny-moe + tiny-draft": ("tiny-moe", "--draft", "tiny-draft", *ONE_THREAD),
    "hybrid 0.5 B, 2,000 tokens": (
        *("{target}", "--draft", "{draft}", "--gamma", "4", "--prompt", "length-2000", "--n-predict", "96"),
        *ONE_THREAD,
    ),
}
N_LAYERS = {"target": 12, "draft": 4}  # of the shape of a hybrid: half a billion parameters, and what drafts for it


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        files = write_pair(Path(folder))
        for name, words in BENCHES.items():
            own = Path(folder) / name.partition(" ")[0]
            arguments = [word.format(**files) for word in words]
            for session, bar in (("first session", FRESH), ("next session", AGAIN)):
                stages, processor_s = bench(arguments, own)
                whole_ns = wall_ns(stages)
                for time in stages:
                    at_least = bar if time.stage == MEASURING else None
                    yield percent(f"{name}, {session}: {time.stage}", time.wall_ns / whole_ns, at_least=at_least)
                for what, seconds in (("worker, wall", whole_ns / 1e9), ("all processes, processor", processor_s)):
                    yield Result(f"{name}, {session}: {what}", seconds, seconds, seconds, "s")


def write_pair(folder: Path) -> dict[str, str]:
    """A random hybrid target and a shallower draft, by their part."""
    shape, files = FULL["qwen3.5-0.8b"], {}
    for part, n_layers in N_LAYERS.items():
        path = folder / f"hybrid-{part}.gguf"
        write_synthetic(path, from_shape(shape, quant="Q4_0", n_layers=n_layers))
        files[part] = str(path)
    return files


def bench(arguments: list[str], home: Path) -> tuple[tuple[StageTime, ...], float]:
    """Stages of one `mlsd bench` with its own folders, and the processor time in s of all its processes."""
    variables = {**os.environ, "MLSD_HOME": str(home / "home"), "MLSD_CACHE": str(home / "cache")}
    command = [sys.executable, "-m", "mlsd", "bench", *arguments, "--json", "--db", str(home / "bench.sqlite")]
    home.mkdir(exist_ok=True)
    before = os.times()
    done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    after = os.times()
    processor_s = after.children_user - before.children_user + after.children_system - before.children_system
    return msgspec.convert(json.loads(done.stdout)["stages"], tuple[StageTime, ...]), processor_s

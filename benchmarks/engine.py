"""What Python costs in a round, outside the native library; `peers` has whole programs beside each other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from benchmarks.harness import Result, of_samples, smollm2
from mlsd.clock import MonotonicClock
from mlsd.drafters.chain import Chain
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import library
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import make_rollback
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.synthetic.write import write_random

OPTIONS = ContextOptions(n_ctx=512, n_threads=1)
PROMPT = "def fibonacci(n):\n"
N_PREDICT = 64


def run() -> Iterator[Result]:
    with LlamaModel(smollm2()) as model:
        yield from python_per_round(model)


class NativeTime:
    """CPU time inside native calls, by wrapping each function that a round uses.

    CPU time of this thread, not wall time: with one llama.cpp thread all work is in it, and what other processes take
    away from a shared core is not Python's doing.
    """

    WRAPPED = ("llama_decode", "llama_synchronize", "llama_get_sampled_token_ith", "llama_memory_seq_rm")
    STATE = ("llama_state_seq_get_size_ext", "llama_state_seq_get_data_ext", "llama_state_seq_set_data_ext")

    def __init__(self) -> None:
        self.spent_ns = 0
        self._originals: dict[str, Callable[..., object]] = {}

    def __enter__(self) -> NativeTime:
        native = library()
        for name in (*self.WRAPPED, *self.STATE):
            self._originals[name] = getattr(native, name)
            setattr(native, name, self._timed(self._originals[name]))
        return self

    def _timed(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            started = time.thread_time_ns()
            value = function(*arguments)
            self.spent_ns += time.thread_time_ns() - started
            return value

        return call

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(library(), name, original)


GAMMA = 8


def python_per_round(model: LlamaModel) -> Iterator[Result]:
    """Python's CPU time per round at gamma 8: as a share of SmolLM2's round, and with Qwen3.5's vocabulary."""
    outside_us, round_us = _python_per_round(model, model, "trim", "trim")
    shares = [100 * x / y for x, y in zip(outside_us, round_us, strict=True)]
    yield of_samples("Python outside native calls, share of SmolLM2's round at gamma 8", shares, "%", at_most=2.0)
    yield of_samples("Python outside native calls, SmolLM2 (49,152 tokens)", outside_us, "us")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wide.gguf"
        write_random(path, msgspec.structs.replace(TINY["qwen35"], name="wide", n_vocab=248_320), seed=1)
        with LlamaModel(path) as wide:
            wide_us, _ = _python_per_round(wide, wide, "snapshots", "checkpoint")
    yield of_samples("Python outside native calls, tiny qwen35 with 248,320 tokens", wide_us, "us")
    shares = [100 * x / y for x, y in zip(wide_us, round_us, strict=True)]
    yield of_samples("the same as a share of SmolLM2's round", shares, "%", at_most=2.0)


def _python_per_round(
    target_model: LlamaModel, draft_model: LlamaModel, target_strategy: str, draft_strategy: str
) -> tuple[list[float], list[float]]:
    """Microseconds of CPU per round outside native calls, and in all, over some generations."""
    wide = msgspec.structs.replace(OPTIONS, max_outputs=GAMMA + 1)
    if target_strategy == "snapshots":
        wide = msgspec.structs.replace(wide, n_snapshots=GAMMA + 1)
    outside_us, round_us = [], []
    with open_context(target_model, wide) as target, open_context(draft_model, OPTIONS) as draft:
        prompt = target.tokenizer.tokenize(PROMPT)
        memory = OwnMemory(draft, make_rollback(draft_strategy, draft), MonotonicClock())
        drafter = ChainDrafter(memory, Chain(MonotonicClock()))
        rollback = make_rollback(target_strategy, target)
        for _ in range(5):
            spans = []
            # Two lengths: their difference is rounds alone, without prefill and preparation.
            for n_predict in (N_PREDICT // 2, N_PREDICT):
                limits = GenerationLimits(n_predict=n_predict, gamma=GAMMA)
                with NativeTime() as native:
                    started = time.thread_time_ns()
                    result = generate(target, drafter, rollback, prompt, limits, MonotonicClock())
                    total = time.thread_time_ns() - started
                spans.append((total, native.spent_ns, len(result.rounds)))
            (total0, native0, rounds0), (total1, native1, rounds1) = spans
            n_rounds = rounds1 - rounds0
            round_us.append((total1 - total0) / n_rounds / 1000)
            outside_us.append(((total1 - native1) - (total0 - native0)) / n_rounds / 1000)
    return outside_us, round_us

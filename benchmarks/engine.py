"""What the engine costs on top of the native library: plain decoding, Python per round, sampling on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from benchmarks.harness import Result, interleaved, of_samples, ratios
from benchmarks.models import smollm2
from mlsd.clock import MonotonicClock
from mlsd.drafters.draft_model import DraftModel
from mlsd.engine._native import library
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama import LlamaModel, LlamaSession
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import SessionOptions

OPTIONS = SessionOptions(n_ctx=512, n_threads=1)
PROMPT = "def fibonacci(n):\n"
N_PREDICT = 96
REPEATS = 9


def run() -> Iterator[Result]:
    with LlamaModel(smollm2()) as model:
        yield plain_against_bare_loop(model)
        yield sampling_on_device(model)
        yield from python_per_round(model)


def plain_against_bare_loop(model: LlamaModel) -> Result:
    """AR tok/s through Session and the loop, over a bare ctypes loop with argmax sampling on the device."""
    with model.session(OPTIONS) as session, model.session(OPTIONS) as bare:
        prompt = session.tokenize(PROMPT)

        def through_session() -> float:
            limits = GenerationLimits(n_predict=N_PREDICT)
            result = generate(session, NoDrafter(), make_rollback("trim", session), prompt, limits, MonotonicClock())
            return (N_PREDICT - 1) / result.decode_ns

        figures = interleaved({"session": through_session, "bare": lambda: bare_loop(bare, prompt, N_PREDICT)}, REPEATS)
    return of_samples(
        "AR tok/s, Session over bare ctypes loop", ratios(figures["session"], figures["bare"]), "ratio", at_least=0.98
    )


def bare_loop(session: LlamaSession, prompt: tuple[int, ...], n_predict: int) -> float:
    """The shortest loop ctypes allows: one batch, one decode, one sampled token."""
    native, handle, batch = library(), session.handle, session._batch
    native.llama_memory_clear(session.memory, True)
    for i, token in enumerate(prompt):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, i == len(prompt) - 1
    batch.n_tokens = len(prompt)
    assert native.llama_decode(handle, batch) == 0
    token = native.llama_get_sampled_token_ith(handle, len(prompt) - 1)
    batch.n_tokens, batch.logits[0] = 1, 1
    started = time.perf_counter_ns()
    for position in range(len(prompt), len(prompt) + n_predict - 1):
        batch.token[0], batch.pos[0] = token, position
        assert native.llama_decode(handle, batch) == 0
        token = native.llama_get_sampled_token_ith(handle, 0)
    return (n_predict - 1) / (time.perf_counter_ns() - started)


def sampling_on_device(model: LlamaModel) -> Result:
    """AR tok/s with greedy tokens picked inside the graph, over copying logits rows and argmax in numpy."""

    def speed(session: LlamaSession) -> float:
        limits = GenerationLimits(n_predict=N_PREDICT)
        prompt = session.tokenize(PROMPT)
        result = generate(session, NoDrafter(), make_rollback("trim", session), prompt, limits, MonotonicClock())
        return (N_PREDICT - 1) / result.decode_ns

    copying = msgspec.structs.replace(OPTIONS, device_sampling=False)
    with model.session(OPTIONS) as device, model.session(copying) as host:
        figures = interleaved({"device": lambda: speed(device), "host": lambda: speed(host)}, REPEATS)
    return of_samples(
        "AR tok/s, sampling on the device over copying logits", ratios(figures["device"], figures["host"]), "ratio"
    )


class NativeTime:
    """Counts the time inside native calls by wrapping each function of the library once."""

    WRAPPED = ("llama_decode", "llama_synchronize", "llama_get_sampled_token_ith", "llama_memory_seq_rm")

    def __init__(self) -> None:
        self.spent_ns = 0
        self._originals: dict[str, object] = {}

    def __enter__(self) -> NativeTime:
        native = library()
        for name in self.WRAPPED:
            original = getattr(native, name)
            self._originals[name] = original
            setattr(native, name, self._timed(original))
        return self

    def _timed(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            started = time.perf_counter_ns()
            value = function(*arguments)
            self.spent_ns += time.perf_counter_ns() - started
            return value

        return call

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(library(), name, original)


def python_per_round(model: LlamaModel) -> Iterator[Result]:
    """Python time outside native calls per round at gamma 8 with a draft model, as a share of the round and in us."""
    gamma = 8
    wide = msgspec.structs.replace(OPTIONS, max_outputs=gamma + 1)
    shares, spans = [], []
    with model.session(wide) as target, model.session(OPTIONS) as draft:
        prompt = target.tokenize(PROMPT)
        drafter = DraftModel(draft, make_rollback("trim", draft), MonotonicClock())
        limits = GenerationLimits(n_predict=N_PREDICT, gamma=gamma)
        rollback = make_rollback("trim", target)
        for _ in range(5):
            with NativeTime() as native:
                before = native.spent_ns
                result = generate(target, drafter, rollback, prompt, limits, MonotonicClock())
                inside = native.spent_ns - before - result.prefill_ns - result.draft_prefill_ns
            outside = max(0, result.decode_ns - inside)
            shares.append(100 * outside / result.decode_ns)
            spans.append(outside / len(result.rounds) / 1000)
    yield of_samples("Python outside native calls, share of a round at gamma 8", shares, "%", at_most=2.0)
    yield of_samples("Python outside native calls, per round at gamma 8", spans, "us")

"""Whether machine, build and device do what mlsd takes for granted: asked of small models, in a minute."""

import ctypes
import statistics
import tempfile
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.engine.context import Context, ContextOptions
from mlsd.engine.llama.footprint import allocated_bytes, footprints
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LOG, backend_info, ggml, working_device
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import TappedContext, TensorValue
from mlsd.engine.rollback_choice import NOISE_WIDTHS, PROBE_TEXT, Role, first_exact, kernel_noise
from mlsd.errors import EngineError, ModelFileError
from mlsd.gguf_tools.shape import FULL, TINY
from mlsd.gguf_tools.synthetic.synth import from_shape, write_synthetic
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.measure.messages import Check, report_progress
from mlsd.planning.job import ModelFile
from mlsd.records import BackendInfo
from mlsd.units import MIB, NS_PER_MS

REAL_VOCABULARY = 248_320  # Qwen3.5's, whose rows of logits are what costs memory
# One recurrent block and one of attention as wide as real ones: narrow rows and heads never reach the kernels that real
# models run (Metal's mul_mv_ext takes rows of a multiple of 128, its delta net four simdgroups).
REAL_SHAPE = msgspec.structs.replace(
    FULL["qwen3.5-0.8b"], name="two blocks of qwen3.5-0.8b", n_layers=2, full_attention_interval=2, n_vocab=1024
)
LARGE_VOCABULARY = msgspec.structs.replace(TINY["qwen35"], n_vocab=REAL_VOCABULARY)
_WORK_WIDTHS = (256, 1024)
_REPEATS = 5
_GAMMAS = (1, 4, 16)
_ROLLBACK_GAMMA = 8
_N_GREEDY = 48
MEMORY_TOLERANCE = 0.05
# Four times the work takes at least this much longer, unless the clock was read before the device was done.
LEAST_GROWTH = 2.0

Supports = Callable[[int], bool]  # whether a device has a kernel for a node of a graph, by its address
Answer = tuple[bool | None, str, dict[str, float]]  # `ok`, `answer` and `figures` of a `Check`


def self_check(models: tuple[ModelFile, ...], expected_backend: str | None) -> tuple[BackendInfo, tuple[Check, ...]]:
    """Ask everything of small `models`."""
    backend, supports = backend_info(), device_supports()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_synthetic(real := folder / f"{REAL_SHAPE.name}.gguf", from_shape(REAL_SHAPE, quant="Q4_K_M"))
        write_random(large := folder / "vocabulary.gguf", LARGE_VOCABULARY, seed=1)
        paths = (*(Path(file.path) for file in models), real)
        opened = {path.stem: stack.enter_context(LlamaModel(path)) for path in paths}
        questions: list[tuple[str, str, Callable[[], Answer]]] = [
            ("device", "", lambda: _device(backend, expected_backend)),
            *(("operations", stem, partial(left_to_cpu, m, supports)) for stem, m in opened.items()),
            *((name, stem, partial(ask, model)) for stem, model in opened.items() for name, ask in _OF_MODELS.items()),
            ("synchronised", paths[0].stem, lambda: _synchronised(opened[paths[0].stem])),
            *(("memory", path.stem, partial(_memory, path)) for path in paths),
            ("memory", f"a vocabulary of {REAL_VOCABULARY:,}", lambda: _memory(large)),
        ]
        return backend, tuple(_check(*question) for question in questions)


def _check(name: str, subject: str, ask: Callable[[], Answer]) -> Check:
    """A question answered; one that cannot be asked is one that failed, with its reason."""
    report_progress("checking this machine")
    try:
        ok, answer, figures = ask()
    except (EngineError, ModelFileError) as error:
        ok, answer, figures = False, error.message, {}
    return Check(name=name, subject=subject, ok=ok, answer=answer, figures=figures)


def _device(backend: BackendInfo, expected: str | None) -> Answer:
    ok = None if expected is None else backend.backend == expected
    wanted = "" if ok is not False else f"; {expected} was expected"
    return ok, f"{backend.backend}: {backend.device}{wanted}", {}


def left_to_cpu(model: LlamaModel, supports: Supports) -> Answer:
    """What of the operations of a model a device leaves to the CPU; without products of matrices it fails."""
    kernels = pass_operations(model, supports)
    backend, lacking = backend_info().backend, sorted(name for name, has_kernel in kernels.items() if not has_kernel)
    n_known = len(kernels) - len(lacking)
    if not lacking:
        return True, f"all {n_known} operations run on {backend}", {}
    lacks_products = any(name in PRODUCTS for name in lacking)
    answer = f"{', '.join(lacking)} would run on the CPU, {n_known} other operations on {backend}"
    return False if lacks_products else None, answer, {}


def _options(**changed: int | bool) -> ContextOptions:
    base = ContextOptions(n_ctx=512, n_batch=256, n_ubatch=256, device_sampling=False, max_outputs=1)
    return msgspec.structs.replace(base, **changed)


def _first_passes(model: LlamaModel) -> Answer:
    """How much longer the first pass of a width takes than later ones: kernels are compiled when first used."""
    slowest, figures = 1.0, {}
    tokens = model.tokenize(PROBE_TEXT)
    for width in (1, *NOISE_WIDTHS):
        with open_context(model, _options()) as context:
            spans = _spans(context, tokens[:width])
        ratio = spans[0] / max(1.0, statistics.median(spans[1:]))
        figures[f"first over later, {width} wide"] = round(ratio, 2)
        slowest = max(slowest, ratio)
    return None, f"the first pass of a width takes up to {slowest:.1f} times as long as later ones", figures


def _spans(context: Context, tokens: Sequence[int]) -> list[int]:
    clock, spans = MonotonicClock(), []
    for _ in range(_REPEATS):
        context.clear()
        started_ns = clock.now_ns()
        context.decode(tokens)
        spans.append(clock.now_ns() - started_ns)
    return spans


def _rollback(model: LlamaModel) -> Answer:
    """The first candidate that is exact, at a gamma that most use."""
    find = partial(first_exact, recurrent=model.is_recurrent, backend=backend_info().backend)
    target, draft = (
        find(partial(open_context, model), _options(), role, _ROLLBACK_GAMMA) for role in typing.get_args(Role)
    )
    answer = f"as a target {target or 'none'}, as a draft {draft or 'none'}"
    return target is not None and draft is not None, answer, {}


def _sampling(model: LlamaModel) -> Answer:
    """Whether the device picks the token that the host would pick from the logits."""
    prompt = model.tokenize(PROBE_TEXT)[:32]
    with open_context(model, _options()) as host, open_context(model, _options(device_sampling=True)) as device:
        host.decode(prompt)
        device.decode(prompt)
        differences, margin = 0, 0.0
        for _ in range(_N_GREEDY):
            row, picked = host.logits()[0], device.greedy()[0]
            best = int(row.argmax())
            if picked != best:
                differences += 1
                margin = max(margin, float(row[best] - row[picked]))
            host.decode([best])
            device.decode([best])
    answer = f"{_N_GREEDY - differences} of {_N_GREEDY} tokens equal" + (f", {margin:.3g} apart" if differences else "")
    return differences == 0, answer, {}


def _noise(model: LlamaModel) -> Answer:
    """How far a pass of many rows lies from single ones, for each width: the device's own rounding."""
    noise_of = kernel_noise(partial(open_context, model), _options())
    figures = {f"{width} wide": float(f"{noise:.3g}") for width, noise in noise_of.items()}
    return None, f"up to {max(figures.values()):.3g} logits in passes up to {max(noise_of)} wide", figures


def _repeats(model: LlamaModel) -> Answer:
    """Whether the same text gives the same bits again, in another context."""
    tokens, rows = model.tokenize(PROBE_TEXT)[:64], []
    for _ in range(2):
        with open_context(model, _options(max_outputs=64)) as context:
            context.decode(tokens, n_outputs=len(tokens))
            rows.append(context.logits().copy())
    difference = float(np.abs(rows[0] - rows[1]).max())
    return difference == 0, "equal to the bit" if difference == 0 else f"up to {difference:.3g} logits apart", {}


def _synchronised(model: LlamaModel) -> Answer:
    """Whether a pass is over when it says so: four times the work must take clearly longer."""
    tokens = (model.tokenize(PROBE_TEXT) * 16)[: max(_WORK_WIDTHS)]
    with open_context(model, _options(n_ctx=2 * max(_WORK_WIDTHS))) as context:
        return synchronised({width: statistics.median(_spans(context, tokens[:width])) for width in _WORK_WIDTHS})


def synchronised(spans_ns: Mapping[int, float]) -> Answer:
    """The verdict on times of passes by width: the widest against the narrowest."""
    narrow, wide = min(spans_ns), max(spans_ns)
    growth = spans_ns[wide] / max(1.0, spans_ns[narrow])
    figures = {f"{width} tokens, ms": round(span / NS_PER_MS, 3) for width, span in spans_ns.items()}
    return growth >= LEAST_GROWTH, f"{wide // narrow} times the tokens take {growth:.1f} times as long", figures


def _memory(path: Path) -> Answer:
    """Predicted memory against what llama.cpp allocates."""
    wanted = [_options(device_sampling=True, max_outputs=gamma + 1, n_snapshots=gamma) for gamma in _GAMMAS]
    with LlamaModel(path, simulated=True) as hollow, LlamaModel(path) as model:
        predicted = [footprint.total_bytes for footprint in footprints(hollow, wanted)]
        allocated = [_allocated_bytes(model, options) for options in wanted]
    worst = max(abs(p / a - 1) for p, a in zip(predicted, allocated, strict=True))
    sizes = ", ".join(f"{size / MIB:.1f}" for size in allocated)
    return worst <= MEMORY_TOLERANCE, f"contexts of {sizes} MiB, predicted within {100 * worst:.1f} %", {}


def _allocated_bytes(model: LlamaModel, options: ContextOptions) -> float:
    with LOG.everything() as lines, open_context(model, options):
        pass
    return allocated_bytes(lines)


_OF_MODELS: dict[str, Callable[[LlamaModel], Answer]] = {
    "first passes": _first_passes,
    "rollback": _rollback,
    "sampling": _sampling,
    "kernel noise": _noise,
    "repeats": _repeats,
}


# --- operations that a device lacks: the scheduler gives them to the CPU without a word ------------------------------

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")  # without these on the device nothing of a model runs there
_NOTHING = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # computes nothing
_ROWS = (1, 5, 64)  # decoding, verifying, prefill


def device_supports() -> Supports:
    """The question to the device that does the work."""
    ask, device = ggml().ggml_backend_dev_supports_op, working_device()[1]
    ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_bool
    return lambda node: bool(ask(device, node))


def pass_operations(model: LlamaModel, supports: Supports) -> dict[str, bool]:
    """Operations of passes of every width over a model, sampled greedily on the device; whether it has kernels."""
    tap = _AskTap(supports)
    options = ContextOptions(
        n_ctx=256, n_batch=max(_ROWS), n_ubatch=max(_ROWS), device_sampling=True, max_outputs=min(_ROWS)
    )
    with TappedContext(model, options) as context, context.tapped(tap):
        for width in _ROWS:
            context.clear()
            context.decode(model.tokenize("a " * width)[:width])
    return tap.answers


class _AskTap:
    """Asks of every node of a pass; an operation has a kernel where all its nodes have."""

    def __init__(self, supports: Supports) -> None:
        self._supports = supports
        self.answers: dict[str, bool] = {}

    def wants(self, name: str) -> bool:
        return True

    def visit(self, name: str, value: TensorValue) -> None:
        if (operation := value.operation) not in _NOTHING:
            self.answers[operation] = self.answers.get(operation, True) and self._supports(value.handle)

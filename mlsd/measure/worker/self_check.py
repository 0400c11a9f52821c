"""Whether machine, build and device do what mlsd takes for granted: asked of small models, in a minute."""

import ctypes
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mlsd.clock import Clock, MonotonicClock
from mlsd.engine.context import Context, ContextOptions, Logits
from mlsd.engine.llama.footprint import allocated_bytes, footprints
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LOG, backend_info, ggml, working_device
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import TappedContext, TensorValue
from mlsd.engine.probe import NOISE_WIDTHS, PROBE_TEXT, kernel_noise, probe
from mlsd.errors import EngineError, ModelFileError, NativeError
from mlsd.gguf_tools.shape import FULL, TINY
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.synth import from_shape, write_synthetic
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.measure.messages import Alive, Check, silent
from mlsd.planning.job import ModelFile
from mlsd.records import BackendInfo
from mlsd.units import MIB, NS_PER_MS

REAL_VOCABULARY = 248_320  # Qwen3.5's, whose rows of logits are what costs memory
# One recurrent block and one of attention as wide as real ones: narrow rows and heads never reach the kernels that real
# models run (Metal's mul_mv_ext takes rows of a multiple of 128, its delta net four simdgroups).
REAL_SHAPE = msgspec.structs.replace(
    FULL["qwen3.5-0.8b"], name="two blocks of qwen3.5-0.8b", n_layers=2, full_attention_interval=2, n_vocab=1024
)
_WORK_WIDTHS = (256, 1024)
_REPEATS = 5
_GAMMAS = (1, 4, 16)
_N_GREEDY = 48
MEMORY_TOLERANCE = 0.05
# Four times the work takes at least this much longer, unless the clock was read before the device was done.
LEAST_GROWTH = 2.0

Supports = Callable[[int], bool]  # whether a device has a kernel for a node of a graph, by its address


def self_check(
    models: tuple[ModelFile, ...], at_hand: tuple[ModelFile, ...], expected_backend: str | None, alive: Alive = silent
) -> tuple[BackendInfo, tuple[Check, ...]]:
    """Ask everything of small `models`, which are opened, and of the headers of those `at_hand`.

    A check that cannot be made is one that failed, with its reason.
    """
    clock = MonotonicClock()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_synthetic(real := folder / f"{REAL_SHAPE.name}.gguf", from_shape(REAL_SHAPE, quant="Q4_K_M"))
        paths = (*(Path(file.path) for file in models), real)
        opened = [stack.enter_context(LlamaModel(path)) for path in paths]
        checks = [_device(expected_backend), *operations(opened, at_hand, device_supports())]
        for model in opened:
            for ask in (_first_passes, _rollback, _sampling, _noise, _repeats):
                alive("checking this machine")
                checks.append(_guarded(ask, model, clock))
        checks.append(_guarded(_synchronised, opened[0], clock))
        checks += _memory(opened, folder)
    return backend_info(), tuple(checks)


def _guarded(ask: Callable[[LlamaModel, Clock], Check], model: LlamaModel, clock: Clock) -> Check:
    try:
        return ask(model, clock)
    except EngineError as error:
        name = ask.__name__.lstrip("_").replace("_", " ")
        return Check(name=name, subject=model.path.stem, ok=False, answer=error.message)


def _device(expected: str | None) -> Check:
    found = backend_info()
    ok = None if expected is None else found.backend == expected
    wanted = "" if ok is not False else f"; {expected} was expected"
    return Check(name="device", ok=ok, answer=f"{found.backend}: {found.device}{wanted}")


def operations(models: Sequence[LlamaModel], at_hand: Sequence[ModelFile], supports: Supports) -> Iterator[Check]:
    """What of these models, and of the products of those at hand, a device leaves to the CPU."""
    backend = backend_info().backend
    asked = [("operations", model.path.stem, partial(pass_operations, model)) for model in models]
    asked += [("products", file.ref.id, partial(product_operations, Path(file.path))) for file in at_hand]
    for name, subject, ask in asked:
        try:
            found = ask(supports)
        except (EngineError, ModelFileError) as error:
            yield Check(name=name, subject=subject, ok=False, answer=error.message)
            continue
        lacking = sorted(operation for operation, has_kernel in found.items() if not has_kernel)
        n_known = len(found) - len(lacking)
        answer = f"all {n_known} operations run on {backend}"
        if lacking:
            answer = f"{', '.join(lacking)} would run on the CPU, {n_known} other operations on {backend}"
        lacks_products = any(operation.split(" ")[0] in PRODUCTS for operation in lacking)
        yield Check(name=name, subject=subject, ok=not lacks_products and (None if lacking else True), answer=answer)


def _options(**changed: int | bool) -> ContextOptions:
    base = ContextOptions(n_ctx=512, n_batch=256, n_ubatch=256, device_sampling=False, max_outputs=1)
    return msgspec.structs.replace(base, **changed)


def _first_passes(model: LlamaModel, clock: Clock) -> Check:
    """How much longer the first pass of a width takes than later ones: kernels are compiled when first used."""
    slowest, figures = 1.0, {}
    tokens = model.tokenize(PROBE_TEXT)
    for width in (1, *NOISE_WIDTHS):
        with open_context(model, _options()) as context:
            spans = _spans(context, tokens[:width], clock)
        ratio = spans[0] / max(1.0, statistics.median(spans[1:]))
        figures[f"first over later, {width} wide"] = round(ratio, 2)
        slowest = max(slowest, ratio)
    answer = f"the first pass of a width takes up to {slowest:.1f} times as long as later ones"
    return Check(name="first passes", subject=model.path.stem, ok=None, answer=answer, figures=figures)


def _spans(context: Context, tokens: Sequence[int], clock: Clock) -> list[int]:
    spans = []
    for _ in range(_REPEATS):
        context.clear()
        started_ns = clock.now_ns()
        context.decode(tokens)
        spans.append(clock.now_ns() - started_ns)
    return spans


def _rollback(model: LlamaModel, clock: Clock) -> Check:
    report = probe(partial(open_context, model), _options())
    exact = report.target is not None and report.draft is not None
    answer = f"as a target {report.target or 'none'}, as a draft {report.draft or 'none'}"
    return Check(name="rollback", subject=model.path.stem, ok=exact, answer=answer)


def _sampling(model: LlamaModel, clock: Clock) -> Check:
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
    return Check(name="sampling", subject=model.path.stem, ok=differences == 0, answer=answer)


def _noise(model: LlamaModel, clock: Clock) -> Check:
    """How far a pass of many rows lies from single ones, for each width: the device's own rounding."""
    found = kernel_noise(partial(open_context, model), _options())
    figures = {f"{width} wide": float(f"{noise:.3g}") for width, noise in found.items()}
    answer = f"up to {max(figures.values()):.3g} logits in passes up to {max(found)} wide"
    return Check(name="kernel noise", subject=model.path.stem, ok=None, answer=answer, figures=figures)


def _decoded(context: Context, tokens: Sequence[int]) -> Logits:
    context.decode(tokens, n_outputs=len(tokens))
    return context.logits()


def _repeats(model: LlamaModel, clock: Clock) -> Check:
    """Whether the same text gives the same bits again, in another context."""
    tokens = model.tokenize(PROBE_TEXT)[:64]
    rows = []
    for _ in range(2):
        with open_context(model, _options(max_outputs=64)) as context:
            rows.append(_decoded(context, tokens))
    difference = float(np.abs(rows[0] - rows[1]).max())
    answer = "equal to the bit" if difference == 0 else f"up to {difference:.3g} logits apart"
    return Check(name="repeats", subject=model.path.stem, ok=difference == 0, answer=answer)


def _synchronised(model: LlamaModel, clock: Clock) -> Check:
    """Whether a pass is over when it says so: four times the work must take clearly longer."""
    tokens = (model.tokenize(PROBE_TEXT) * 16)[: max(_WORK_WIDTHS)]
    spans: dict[int, float] = {}
    with open_context(model, _options(n_ctx=2 * max(_WORK_WIDTHS))) as context:
        for width in _WORK_WIDTHS:
            spans[width] = statistics.median(_spans(context, tokens[:width], clock))
    return synchronised(spans, model.path.stem)


def synchronised(spans_ns: Mapping[int, float], subject: str = "") -> Check:
    """The verdict on times of passes by width: the widest against the narrowest."""
    narrow, wide = min(spans_ns), max(spans_ns)
    growth = spans_ns[wide] / max(1.0, spans_ns[narrow])
    answer = f"{wide // narrow} times the tokens take {growth:.1f} times as long"
    figures = {f"{width} tokens, ms": round(span / NS_PER_MS, 3) for width, span in spans_ns.items()}
    return Check(name="synchronised", subject=subject, ok=growth >= LEAST_GROWTH, answer=answer, figures=figures)


def _memory(models: Sequence[LlamaModel], folder: Path) -> Iterator[Check]:
    """Predicted memory against what llama.cpp allocates, also at the vocabulary of the models that people run."""
    large = folder / "vocabulary.gguf"
    write_random(large, msgspec.structs.replace(TINY["qwen35"], n_vocab=REAL_VOCABULARY), seed=1)
    for path in (*(model.path for model in models), large):
        subject = "a vocabulary of 248,320" if path == large else path.stem
        wanted = [_options(device_sampling=True, max_outputs=gamma + 1, n_snapshots=gamma) for gamma in _GAMMAS]
        try:
            with LlamaModel(path, simulated=True) as hollow, LlamaModel(path) as model:
                predicted = [found.total_bytes for found in footprints(hollow, wanted)]
                allocated = [_allocated_bytes(model, options) for options in wanted]
        except EngineError as error:
            yield Check(name="memory", subject=subject, ok=False, answer=error.message)
            continue
        worst = max(abs(p / a - 1) for p, a in zip(predicted, allocated, strict=True))
        sizes = ", ".join(f"{size / MIB:.1f}" for size in allocated)
        answer = f"contexts of {sizes} MiB, predicted within {100 * worst:.1f} %"
        yield Check(name="memory", subject=subject, ok=worst <= MEMORY_TOLERANCE, answer=answer)


def _allocated_bytes(model: LlamaModel, options: ContextOptions) -> float:
    with LOG.everything() as lines, open_context(model, options):
        pass
    return allocated_bytes(lines)


# --- operations that a device lacks: the scheduler gives them to the CPU without a word ------------------------------

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")  # without these on the device nothing of a model runs there
_NOTHING = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # computes nothing
_ROOM_BYTES, _F32, _I32 = 1 << 20, 0, 26  # ggml's numbers of the two types
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


def product_operations(path: Path, supports: Supports) -> dict[str, bool]:
    """The same of products with the matrices of a file, as its header lists them; no weight is read."""
    answers: dict[str, bool] = {}
    stored = [tensor for shard in Source(path).shards() for tensor in shard.tensors]
    matrices = (t for t in stored if len(t.dims) > 1 and t.name.endswith(".weight") and "conv1d" not in t.name)
    shapes = {(matrix.type, tuple(matrix.dims)) for matrix in matrices}
    for kind, dims in sorted(shapes):
        for name, node in _products(int(kind), dims):
            product = f"{name} of {kind.name}"
            answers[product] = answers.get(product, True) and supports(node)
    return answers


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


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def _products(kind: int, dims: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Nodes that multiply a matrix, or stacked ones of experts, with rows of activations; good until the next."""
    with _graph() as (base, room):

        def tensor(of: int, *sizes: int) -> Any:
            return base.ggml_new_tensor(room, of, len(sizes), (ctypes.c_int64 * len(sizes))(*sizes))

        weights = tensor(kind, *dims)
        for rows in _ROWS:
            if len(dims) == 2:
                yield "MUL_MAT", base.ggml_mul_mat(room, weights, tensor(_F32, dims[0], rows))
            else:
                chosen = tensor(_I32, 1, rows)
                yield "MUL_MAT_ID", base.ggml_mul_mat_id(room, weights, tensor(_F32, dims[0], 1, rows), chosen)


@contextmanager
def _graph() -> Iterator[tuple[Any, Any]]:
    """Room for nodes without data. Raises: NativeError when there is none."""
    base = ggml()
    pointer, functions = ctypes.c_void_p, ("ggml_init", "ggml_new_tensor", "ggml_mul_mat", "ggml_mul_mat_id")
    for name in functions:
        getattr(base, name).restype = pointer
    base.ggml_init.argtypes = [_InitParams]
    base.ggml_new_tensor.argtypes = [pointer, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int64)]
    base.ggml_mul_mat.argtypes, base.ggml_mul_mat_id.argtypes = [pointer] * 3, [pointer] * 4
    base.ggml_free.argtypes, base.ggml_free.restype = [pointer], None
    room = base.ggml_init(_InitParams(_ROOM_BYTES, None, True))
    if not room:
        raise NativeError("ggml made no room for a graph.", hint="Free some memory.")
    try:
        yield base, room
    finally:
        base.ggml_free(room)

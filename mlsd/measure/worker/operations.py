"""Which operations of a model a device has kernels for; the scheduler gives the others to the CPU without a word."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import ggml, working_device
from mlsd.engine.llama.taps import TappedSession, TensorValue
from mlsd.engine.session import SessionOptions
from mlsd.errors import NativeError
from mlsd.gguf_tools.source import Source
from mlsd.records import Record

Supports = Callable[[int], bool]  # whether a device has a kernel for a node of a graph, by its address
PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")  # without these on the device nothing of a model runs there
_NOTHING = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # computes nothing
_ROOM_BYTES, _F32, _I32 = 1 << 20, 0, 26  # ggml's numbers of the two types
_ROWS = (1, 5, 64)  # decoding, verifying, prefill


class Operations(Record, frozen=True, kw_only=True):
    """What a device was asked of."""

    known: tuple[str, ...]
    fall_back: tuple[str, ...]  # to the CPU

    @property
    def has_products(self) -> bool:
        return not any(name.split(" ")[0] in PRODUCTS for name in self.fall_back)

    def words(self, backend: str) -> str:
        """What runs where: ``all 20 operations run on Metal``, or which do not."""
        if not self.fall_back:
            return f"all {len(self.known)} operations run on {backend}"
        return f"{', '.join(self.fall_back)} would run on the CPU, {len(self.known)} other operations on {backend}"


def device_supports(n_gpu_layers: int = -1) -> Supports:
    """The question to the device that does the work."""
    ask, device = ggml().ggml_backend_dev_supports_op, working_device(n_gpu_layers)[1]
    ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_bool
    return lambda node: bool(ask(device, node))


def pass_operations(model: LlamaModel, supports: Supports) -> Operations:
    """Of passes of every width over a model, sampled greedily on the device."""
    tap = _AskTap(supports)
    options = SessionOptions(
        n_ctx=256, n_batch=max(_ROWS), n_ubatch=max(_ROWS), device_sampling=True, max_outputs=min(_ROWS)
    )
    with TappedSession(model, options) as session, session.tapped(tap):
        for width in _ROWS:
            session.clear()
            session.decode(model.tokenize("a " * width)[:width])
    return _sorted(tap.answers)


def product_operations(path: Path, supports: Supports) -> Operations:
    """Of products with the matrices of a file, as its header lists them; no weight is read."""
    answers: dict[str, bool] = {}
    stored = [tensor for shard in Source(path).shards() for tensor in shard.tensors]
    matrices = (t for t in stored if len(t.dims) > 1 and t.name.endswith(".weight") and "conv1d" not in t.name)
    shapes = {(matrix.type, tuple(matrix.dims)) for matrix in matrices}
    for kind, dims in sorted(shapes):
        for name, node in _products(int(kind), dims):
            said = f"{name} of {kind.name}"
            answers[said] = answers.get(said, True) and supports(node)
    return _sorted(answers)


def _sorted(answers: dict[str, bool]) -> Operations:
    return Operations(
        known=tuple(sorted(name for name, has in answers.items() if has)),
        fall_back=tuple(sorted(name for name, has in answers.items() if not has)),
    )


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

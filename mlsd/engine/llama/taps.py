"""Seeing and overwriting values inside the network while a pass runs, through the scheduler's callback.

Every tap makes the device wait, so a context with taps is an oracle for tests, for choosing blocks and for the shares
of a pass, never a clock. Names of tensors are those of llama.cpp's graphs: ``l_out-N`` is what block N hands on.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.clock import Clock
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import ggml, library
from mlsd.engine.parts import Node, Part, node_parts, part_ends, part_sums
from mlsd.errors import EngineError, UnsupportedError

_F32, _I32 = 0, 26  # ggml's numbers of the two types


class Tap(Protocol):
    """What wants to see some tensors of a pass."""

    def wants(self, name: str) -> bool:
        """Asked of every tensor of the graph in order, before it is computed; an unwanted one costs no waiting."""

    def visit(self, name: str, value: TensorValue) -> None:
        """A wanted tensor was computed and nothing behind it yet."""


class _TensorHead(ctypes.Structure):
    """The first fields of ``struct ggml_tensor`` (ggml.h): all that is needed to read one."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    )


class TensorValue:
    """One computed tensor on its device."""

    def __init__(self, handle: int) -> None:
        self._base, self.handle = ggml(), handle  # its address

    @property
    def n_bytes(self) -> int:
        return int(self._base.ggml_nbytes(self.handle))

    @property
    def operation(self) -> str:
        """What computes it, as ggml names it: ``MUL_MAT``, ``VIEW``, ..."""
        name: bytes = self._base.ggml_op_desc(self.handle)
        return name.decode()

    def read(self) -> bytes:
        buffer = ctypes.create_string_buffer(self.n_bytes)
        self._base.ggml_backend_tensor_get(self.handle, buffer, 0, len(buffer))
        return buffer.raw

    def rows(self) -> npt.NDArray[Any]:
        """Its values, shape (ne1, ne0), a copy. Raises UnsupportedError for a type other than float32 and int32."""
        head = _TensorHead.from_address(self.handle)
        kinds: dict[int, Any] = {_F32: np.float32, _I32: np.int32}
        if head.type not in kinds:
            raise UnsupportedError(f"A tensor of ggml's type {head.type} cannot be read from the graph.")
        # A view (the first k columns of a sort) keeps the row stride of what it views.
        shape, strides = (head.ne[1], head.ne[0]), (head.nb[1], head.nb[0])
        return np.ndarray(shape, dtype=kinds[head.type], buffer=bytearray(self.read()), strides=strides).copy()

    def write(self, data: bytes) -> None:
        """Overwrite it; `data` has its size."""
        if len(data) != self.n_bytes:
            raise EngineError(f"A tensor of {self.n_bytes} bytes cannot take {len(data)}.")
        self._base.ggml_backend_tensor_set(self.handle, data, 0, len(data))


class TappedContext(LlamaContext):
    """A context in which one tap can be active; without one it computes what any context computes."""

    def __init__(self, model: LlamaModel, options: ContextOptions) -> None:
        self._tap: Tap | None = None
        self._failure: BaseException | None = None  # of the tap: it waits until the pass is over
        self._callback: Any = library().ggml_backend_sched_eval_callback(self._on_tensor)
        super().__init__(model, options, lambda params: setattr(params, "cb_eval", self._callback))

    def _on_tensor(self, tensor: int, ask: bool, _: Any) -> bool:
        """First asked whether a tensor is wanted, then told that it is computed; False there would end the pass."""
        tap = self._tap
        if tap is None or self._failure is not None:
            return not ask
        try:
            name = ggml().ggml_get_name(tensor).decode("utf-8", "replace")
            if ask:
                return tap.wants(name)
            tap.visit(name, TensorValue(tensor))
        except BaseException as error:  # noqa: BLE001 - it cannot cross native code; `decode` raises it
            self._failure = error
        return not ask

    @property
    def n_embd(self) -> int:
        return int(self._native.llama_model_n_embd(self.model.handle))

    @contextmanager
    def tapped(self, tap: Tap) -> Iterator[None]:
        self._tap, self._failure = tap, None
        try:
            yield
        finally:
            self._tap = None

    def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        try:
            super().decode(tokens, n_outputs=n_outputs)
        finally:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure


class ReadTap:
    """Hands the values of every tensor whose name `wanted` accepts to `take(name, rows)`; see `TensorValue.rows`."""

    def __init__(self, wanted: Callable[[str], object], take: Callable[[str, npt.NDArray[Any]], None]) -> None:
        self._wanted, self._take = wanted, take

    def wants(self, name: str) -> bool:
        return bool(self._wanted(name))

    def visit(self, name: str, value: TensorValue) -> None:
        self._take(name, value.rows())


class SkipTap:
    """Makes some blocks hand on what they were given, and some parts give zero: the network without them."""

    def __init__(self, skipped: Sequence[int], silent: Sequence[str] = ()) -> None:
        """`skipped` are blocks, `silent` names of tensors. Raises: EngineError for block 0 (no common input name)."""
        if 0 in skipped:
            raise EngineError("Block 0 cannot be skipped while the target runs.", hint="Keep block 0.")
        self._skipped = {f"l_out-{layer}" for layer in skipped}
        self._silent = frozenset(silent)
        sources = {f"l_out-{layer - 1}" for layer in skipped}
        self.names = frozenset(self._skipped | sources | self._silent)
        self._carried = b""

    def wants(self, name: str) -> bool:
        return name in self.names

    def visit(self, name: str, value: TensorValue) -> None:
        if name in self._silent:
            value.write(bytes(value.n_bytes))
        elif name in self._skipped:
            value.write(self._carried)
        else:
            self._carried = value.read()


class GraphTap:
    """Writes down every node of a pass, each computed by itself."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def wants(self, name: str) -> bool:
        return True

    def visit(self, name: str, value: TensorValue) -> None:
        self.nodes.append(Node(name=name, operation=value.operation))


class SpanTap:
    """Times the pieces of passes over one graph, whose nodes are known."""

    def __init__(self, nodes: Sequence[Node], clock: Clock) -> None:
        self._nodes, self._clock = nodes, clock
        self.parts = node_parts(nodes)
        self.ends = part_ends(self.parts)
        ends = set(self.ends)
        self._is_end = [i in ends for i in range(len(nodes))]
        self._next = 0
        self._started_ns = 0
        self._spans: list[int] = []

    def wants(self, name: str) -> bool:
        """See `Tap`. The clock is read last, so that asking is no part of a span."""
        i = self._next
        if i >= len(self._nodes) or (self._is_end[i] and self._nodes[i].name != name):
            raise EngineError(f"A profiled pass computed {name} where its graph had another tensor.")
        self._next = i + 1
        if not self._is_end[i]:
            return False
        self._started_ns = self._clock.now_ns()
        return True

    def visit(self, name: str, value: TensorValue) -> None:
        self._spans.append(self._clock.now_ns() - self._started_ns)

    def take(self) -> dict[Part, int]:
        """Time of each part in the pass since the last call, in ns.

        Raises: EngineError when that was not one whole pass over the known graph.
        """
        n_computed, spans = self._next, self._spans
        self._next, self._spans = 0, []
        if n_computed != len(self._nodes):
            raise EngineError(f"A profiled pass computed {n_computed} tensors, its graph had {len(self._nodes)}.")
        return part_sums(self.ends, self.parts, spans)


Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

_CHOSEN = re.compile(r"ffn_moe_topk-(\d+)")
_CHUNK = 64  # positions of one pass: every one of them is an output, and a row of logits may be a megabyte


class RouterContext(TappedContext):
    """A context that remembers which experts each position of the last decode chose."""

    def __init__(self, model: LlamaModel, options: ContextOptions) -> None:
        """`options` as for timing; the widths are set here."""
        widths = {"max_outputs": _CHUNK, "n_batch": max(_CHUNK, 128)}
        super().__init__(model, msgspec.structs.replace(options, device_sampling=False, **widths))

    def chosen(self, tokens: Sequence[int]) -> dict[int, Ids]:
        """Append `tokens` and return the expert numbers by layer, shape (len(tokens), K).

        Every position is asked for an output, because the last layer computes no other. Raises UnsupportedError for a
        model without routed experts.
        """
        parts: dict[str, list[Ids]] = {}
        reader = ReadTap(_CHOSEN.fullmatch, lambda name, ids: parts.setdefault(name, []).append(ids))
        with self.tapped(reader):
            for start in range(0, len(tokens), _CHUNK):
                chunk = tokens[start : start + _CHUNK]
                self.decode(chunk, n_outputs=len(chunk))
        layers = {int(name.rpartition("-")[2]): np.concatenate(ids) for name, ids in parts.items()}
        if not layers:
            raise UnsupportedError(
                f"{self.model.path.name} chose no experts while it decoded.",
                hint="Expert coverage exists only for a mixture of experts.",
            )
        short = [layer for layer, ids in layers.items() if len(ids) != len(tokens)]
        if short:
            raise EngineError(
                f"Layer {short[0]} reported the experts of {len(layers[short[0]])} of {len(tokens)} rows."
            )
        return dict(sorted(layers.items()))


def distinct_counts(ids: Ids, window: int) -> Counter[int]:
    """Distinct experts in each window of so many consecutive rows of `ids` (n, K) -> number of windows."""
    return Counter(len(np.unique(ids[i : i + window])) for i in range(len(ids) - window + 1))

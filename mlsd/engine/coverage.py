"""Which experts a model's routers choose: read through the scheduler's callback while the model decodes.

A session with a callback is slower, so nothing here belongs into a timed pass.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlsd.engine._native import ggml, library
from mlsd.engine.llama import LlamaModel, LlamaSession
from mlsd.engine.session import SessionOptions
from mlsd.errors import EngineError, UnsupportedError

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

_CHOSEN = re.compile(r"ffn_moe_topk-(\d+)")
_CHUNK = 64  # positions of one pass: every one of them is an output, and a row of logits may be a megabyte
_F32, _I32 = 0, 26  # ggml's numbers of the two types


class _TensorHead(ctypes.Structure):
    """The first fields of ``struct ggml_tensor`` (ggml.h): all that is needed to read one."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    )


class TappedSession(LlamaSession):
    """A session that hands tensors of its graph to `take(name, values)` while it decodes.

    Only tensors whose name `wanted` accepts are copied from the device; values have shape (ne1, ne0), rows first.
    """

    def __init__(
        self,
        model: LlamaModel,
        options: SessionOptions,
        wanted: Callable[[str], bool],
        take: Callable[[str, npt.NDArray[Any]], None],
    ) -> None:
        self._wanted_name, self._take = wanted, take
        self._failure: BaseException | None = None
        self._base = _tensor_functions()
        super().__init__(model, options)

    def _extend(self, params: Any) -> None:
        self._callback = library().ggml_backend_sched_eval_callback(self._on_tensor)
        params.cb_eval = self._callback

    def _on_tensor(self, tensor: int, ask: bool, _: Any) -> bool:
        """First asked whether a tensor is wanted, then told that it is computed; False there would end the pass."""
        name = self._base.ggml_get_name(tensor).decode("utf-8", "replace")
        if not self._wanted_name(name):
            return not ask
        if not ask:
            try:
                self._take(name, self._read(tensor))
            except BaseException as error:  # noqa: BLE001 - it cannot cross native code; `decode` raises it
                self._failure = error
                return False
        return True

    def _read(self, tensor: int) -> npt.NDArray[Any]:
        head = _TensorHead.from_address(tensor)
        kinds: dict[int, Any] = {_F32: np.float32, _I32: np.int32}
        if head.type not in kinds:
            raise UnsupportedError(f"A tensor of ggml's type {head.type} cannot be read from the graph.")
        data = np.empty(self._base.ggml_nbytes(tensor), dtype=np.uint8)
        self._base.ggml_backend_tensor_get(tensor, data.ctypes.data, 0, data.nbytes)
        # A view (the first k columns of a sort) keeps the row stride of what it views.
        shape, strides = (head.ne[1], head.ne[0]), (head.nb[1], head.nb[0])
        rows: npt.NDArray[Any] = np.ndarray(shape, dtype=kinds[head.type], buffer=data.data, strides=strides)
        return rows.copy()

    def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        """As `LlamaSession.decode`; raises what went wrong while a tensor was read."""
        try:
            super().decode(tokens, n_outputs=n_outputs)
        finally:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure


class RouterSession(TappedSession):
    """A session that remembers which experts each position of the last decode chose."""

    def __init__(self, model: LlamaModel, options: SessionOptions) -> None:
        self._parts: dict[int, list[Ids]] = {}
        super().__init__(model, options, lambda name: _CHOSEN.fullmatch(name) is not None, self._collect)

    def _collect(self, name: str, values: npt.NDArray[Any]) -> None:
        found = _CHOSEN.fullmatch(name)
        assert found is not None
        self._parts.setdefault(int(found[1]), []).append(values)

    def chosen(self, tokens: Sequence[int]) -> dict[int, Ids]:
        """Append `tokens` and return the expert numbers by layer, shape (len(tokens), K).

        Every position is asked for an output, because the last layer computes no other. Raises UnsupportedError for a
        model without routed experts.
        """
        self._parts = {}
        for start in range(0, len(tokens), _CHUNK):
            part = tokens[start : start + _CHUNK]
            self.decode(part, n_outputs=len(part))
        layers = {layer: np.concatenate(parts) for layer, parts in sorted(self._parts.items())}
        if not layers:
            raise UnsupportedError(
                f"{self._model.path.name} chose no experts while it decoded.",
                hint="Expert coverage exists only for a mixture of experts.",
            )
        short = [layer for layer, ids in layers.items() if len(ids) != len(tokens)]
        if short:
            raise EngineError(
                f"Layer {short[0]} reported the experts of {len(layers[short[0]])} of {len(tokens)} rows."
            )
        return layers


def router_session(model: LlamaModel, options: SessionOptions) -> RouterSession:
    """A session to ask for experts; `options` as for timing, the widths are set here."""
    import msgspec

    return RouterSession(
        model,
        msgspec.structs.replace(options, max_outputs=_CHUNK, n_batch=max(_CHUNK, 128), device_sampling=False),
    )


def distinct_counts(ids: Ids, window: int) -> dict[int, int]:
    """Distinct experts in each window of so many consecutive rows of `ids` (n, K) -> number of windows."""
    sizes = [len(np.unique(ids[i : i + window])) for i in range(len(ids) - window + 1)]
    values, counts = np.unique(sizes, return_counts=True)
    return {int(value): int(count) for value, count in zip(values, counts, strict=True)}


def times_chosen(ids: Ids, n_experts: int) -> tuple[int, ...]:
    """How often each expert stands in `ids`."""
    return tuple(int(n) for n in np.bincount(ids.reshape(-1), minlength=n_experts))


def merged(counts: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """The sum of several histograms."""
    total: dict[int, int] = {}
    for one in counts:
        for value, count in one.items():
            total[value] = total.get(value, 0) + count
    return dict(sorted(total.items()))


def _tensor_functions() -> Any:
    base = ggml("ggml-base")
    base.ggml_get_name.restype, base.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    base.ggml_nbytes.restype, base.ggml_nbytes.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    base.ggml_backend_tensor_get.restype = None
    base.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    return base

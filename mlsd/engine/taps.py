"""Reading and overwriting values inside the network while a pass runs, through the scheduler's callback.

Every tap makes the device wait, so a session with taps is an oracle for tests and for choosing blocks, never a clock.
Names of tensors are those of llama.cpp's graphs: ``l_out-N`` is what block N hands on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mlsd.engine._native import ggml
from mlsd.engine.llama import LlamaSession
from mlsd.engine.session import SessionOptions
from mlsd.errors import EngineError

if TYPE_CHECKING:
    from mlsd.engine.llama import LlamaModel


class Tap(Protocol):
    """What wants to see some tensors of a pass."""

    names: frozenset[str]

    def visit(self, name: str, value: TensorValue) -> None:
        """A tensor of that name was computed and nothing behind it yet."""


class TensorValue:
    """One computed tensor on its device."""

    def __init__(self, base: ctypes.CDLL, handle: int) -> None:
        self._base, self._handle = base, handle
        self.n_bytes = int(base.ggml_nbytes(handle))

    def read(self) -> bytes:
        """Its bytes."""
        buffer = ctypes.create_string_buffer(self.n_bytes)
        self._base.ggml_backend_tensor_get(self._handle, buffer, 0, self.n_bytes)
        return buffer.raw

    def write(self, data: bytes) -> None:
        """Overwrite it; `data` has its size."""
        if len(data) != self.n_bytes:
            raise EngineError(f"A tensor of {self.n_bytes} bytes cannot take {len(data)}.")
        self._base.ggml_backend_tensor_set(self._handle, data, 0, self.n_bytes)


class TappedSession(LlamaSession):
    """A session in which a tap can be active; without one it computes what any session computes."""

    def __init__(self, model: LlamaModel, options: SessionOptions) -> None:
        self._base = _functions()
        self._tap: Tap | None = None
        self._failure: BaseException | None = None
        super().__init__(model, options)

    def _extend(self, params: Any) -> None:
        self._callback = self._native.ggml_backend_sched_eval_callback(self._on_tensor)
        params.cb_eval = self._callback

    @property
    def n_embd(self) -> int:
        """Width of a hidden row."""
        return int(self._native.llama_model_n_embd(self._model.handle))

    def _on_tensor(self, tensor: int, ask: bool, _: Any) -> bool:
        tap = self._tap
        if tap is None:
            return False
        name = self._base.ggml_get_name(tensor).decode("utf-8", "replace")
        if ask:
            return name in tap.names
        try:
            tap.visit(name, TensorValue(self._base, tensor))
        except BaseException as error:  # noqa: BLE001 - it cannot cross native code; `tapped` raises it
            self._failure = error
        return True

    @contextmanager
    def tapped(self, tap: Tap) -> Iterator[None]:
        """Passes inside the block show their tensors to `tap`.

        Raises: what the tap raised.
        """
        self._tap, self._failure = tap, None
        try:
            yield
        finally:
            self._tap = None
        if self._failure is not None:
            raise self._failure


class SkipTap:
    """Makes some blocks hand on what they were given, and some parts give zero: the network without them."""

    def __init__(self, skipped: Sequence[int], silent: Sequence[str] = ()) -> None:
        """`skipped` are block numbers, 0 not among them; `silent` are names of tensors.

        Raises: EngineError for block 0, whose input has no name common to all architectures.
        """
        if 0 in skipped:
            raise EngineError("Block 0 cannot be skipped in place.", hint="Keep it, or use the own or sync mode.")
        self._skipped = {f"l_out-{layer}" for layer in skipped}
        self._silent = frozenset(silent)
        sources = {f"l_out-{layer - 1}" for layer in skipped}
        self.names = frozenset(self._skipped | sources | self._silent)
        self._carried = b""

    def visit(self, name: str, value: TensorValue) -> None:
        """See `Tap`."""
        if name in self._silent:
            value.write(bytes(value.n_bytes))
        elif name in self._skipped:
            value.write(self._carried)
        else:
            self._carried = value.read()


class CollectTap:
    """Keeps the values of some tensors of one pass: rows of float32, shape (positions, width)."""

    def __init__(self, names: Sequence[str], width: int) -> None:
        self.names = frozenset(names)
        self._width = width
        self.values: dict[str, npt.NDArray[np.float32]] = {}

    def visit(self, name: str, value: TensorValue) -> None:
        """See `Tap`. A name that also belongs to a tensor of another width is skipped."""
        data = np.frombuffer(value.read(), dtype=np.float32)
        if data.size % self._width == 0:
            self.values[name] = data.reshape(-1, self._width)


def _functions() -> ctypes.CDLL:
    base = ggml("ggml-base")
    base.ggml_get_name.restype = ctypes.c_char_p
    base.ggml_get_name.argtypes = [ctypes.c_void_p]
    base.ggml_nbytes.restype = ctypes.c_size_t
    base.ggml_nbytes.argtypes = [ctypes.c_void_p]
    for function in (base.ggml_backend_tensor_get, base.ggml_backend_tensor_set):
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    return base

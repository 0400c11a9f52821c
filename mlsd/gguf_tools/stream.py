"""A GGUF file being written: metadata first, then tensor after tensor, never more than a piece of one in memory."""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType

from mlsd.folders import replacing
from mlsd.gguf_tools.shape import SYNTHETIC
from mlsd.gguf_tools.tensor import Tensor

_U64 = struct.Struct("<Q")
_ARRAY_HEAD = struct.Struct("<IIQ")

Progress = Callable[[str, int], None]  # (tensor name, bytes just written)


class Writer(gguf.GGUFWriter):  # type: ignore[misc]  # the package is untyped
    """The reference writer, with arrays packed at once; item by item a vocabulary of 248,320 costs it seconds."""

    def _pack_val(
        self, val: Any, vtype: GGUFValueType, add_vtype: bool, sub_type: GGUFValueType | None = None
    ) -> bytes:
        packed = _pack_array(val, sub_type) if vtype is GGUFValueType.ARRAY and add_vtype else None
        if packed is not None:
            return packed
        encoded: bytes = super()._pack_val(val, vtype, add_vtype, sub_type)
        return encoded


def _pack_array(values: Any, item_type: GGUFValueType | None) -> bytes | None:
    """An array of one kind of item as a GGUF value; None for what the reference writer should judge."""
    if not isinstance(values, list | tuple) or not values:
        return None
    kinds = set(map(type, values))
    if kinds == {str} and item_type in (None, GGUFValueType.STRING):
        encoded = [text.encode("utf-8") for text in values]
        items = b"".join(part for text in encoded for part in (_U64.pack(len(text)), text))
        item_type = GGUFValueType.STRING
    elif all(issubclass(kind, int) and kind is not bool for kind in kinds) and item_type in (None, GGUFValueType.INT32):
        items = struct.pack(f"<{len(values)}i", *values)
        item_type = GGUFValueType.INT32
    else:
        return None
    return _ARRAY_HEAD.pack(GGUFValueType.ARRAY, item_type, len(values)) + items


class TensorStream:
    """Takes the tensors' data in the order in which they were announced."""

    def __init__(self, writer: gguf.GGUFWriter, announced: Sequence[Tensor], progress: Progress | None) -> None:
        self._writer = writer
        self._file: BinaryIO = writer.fout[0]
        self._announced = list(announced)
        self._next = 0
        self._progress = progress
        writer.write_padding(self._file, self._file.tell())

    def write(self, pieces: Iterable[npt.NDArray[Any]]) -> None:
        """Write the next announced tensor from consecutive pieces of its data."""
        tensor = self._announced[self._next]
        self._next += 1
        written = 0
        for piece in pieces:
            # The buffer is handed over as it is: no copy of a piece is made.
            self._file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
            written += piece.nbytes
            if self._progress:
                self._progress(tensor.name, piece.nbytes)
        if written != tensor.n_bytes:
            raise ValueError(f"{tensor.name} has {written} bytes of data where {tensor.n_bytes} were announced")
        self._writer.write_padding(self._file, tensor.n_bytes)

    def leave_hole(self) -> None:
        """Leave the next announced tensor unwritten: a hole in a sparse file, which reads as zeros."""
        tensor = self._announced[self._next]
        self._next += 1
        self._file.truncate(self._file.seek(tensor.n_bytes, os.SEEK_CUR))
        self._writer.write_padding(self._file, tensor.n_bytes)

    def check_complete(self) -> None:
        if self._next != len(self._announced):
            raise ValueError(f"{len(self._announced) - self._next} announced tensors were not written")


@contextmanager
def new_gguf(
    path: Path,
    architecture: str,
    announced: Sequence[Tensor],
    describe: Callable[[gguf.GGUFWriter], None],
    *,
    progress: Progress | None = None,
) -> Iterator[TensorStream]:
    """Create `path` with the metadata that `describe` adds, whole or not at all. Raises: InputError."""
    with replacing(path, "Check the folder, its permissions and space.", make_folder=True) as part:
        writer = Writer(part, architecture)
        try:
            describe(writer)
            for tensor in announced:
                writer.add_tensor_info(
                    tensor.name, tensor.dims[::-1], np.dtype(np.float32), tensor.n_bytes, raw_dtype=tensor.type
                )
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            stream = TensorStream(writer, announced, progress)
            yield stream
            stream.check_complete()
        finally:
            writer.close()


def add_keys(
    writer: gguf.GGUFWriter, architecture: str, keys: dict[str, Any], *, name: str, origin: dict[str, Any]
) -> None:
    """Write the architecture's keys, the name, and `origin` under ``mlsd.`` next to the mark `SYNTHETIC`."""

    def add(key: str, value: Any) -> None:
        """Whole numbers have 32 bits and no sign, as llama.cpp expects them."""
        kind = GGUFValueType.UINT32 if type(value) is int else GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)

    writer.add_name(name)
    writer.add_description("Random weights written by mlsd. Its text has no meaning.")
    writer.add_bool(SYNTHETIC, True)
    for key, value in origin.items():
        add(f"mlsd.{key}", value)
    for key, value in keys.items():
        add(f"{architecture}.{key}", value)

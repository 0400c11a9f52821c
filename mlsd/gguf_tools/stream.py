"""A GGUF file being written: metadata first, then tensor after tensor, never more than a piece of one in memory."""

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType

from mlsd.errors import InputError
from mlsd.folders import replacing
from mlsd.gguf_tools.shape import SYNTHETIC
from mlsd.gguf_tools.tensor import Tensor
from mlsd.hashes import OnBytes

_U64 = struct.Struct("<Q")
_ARRAY_HEAD = struct.Struct("<IIQ")


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


def write_gguf(
    path: Path,
    architecture: str,
    tensors: Sequence[Tensor],
    describe: Callable[[gguf.GGUFWriter], None],
    data: Callable[[Tensor], Iterable[npt.NDArray[Any]]] | None,
    *,
    made_from: Path | None = None,
    on_bytes: OnBytes | None = None,
) -> None:
    """Write `path` with the metadata that `describe` adds, whole or not at all.

    `data` gives a tensor's data in consecutive pieces; without it each tensor is a hole in a sparse file, which reads
    as zeros. Raises: InputError, also where `path` is the file that it is `made_from`.
    """
    if made_from is not None and path.exists() and path.samefile(made_from):
        raise InputError(f"{path} cannot be written onto itself.", hint="Give another output file.")
    done, n_bytes = 0, sum(tensor.n_bytes for tensor in tensors)
    with replacing(path, "Check the folder, its permissions and space.", make_folder=True) as part:
        writer = Writer(part, architecture)
        try:
            describe(writer)
            for tensor in tensors:
                writer.add_tensor_info(
                    tensor.name, tensor.dims[::-1], np.dtype(np.float32), tensor.n_bytes, raw_dtype=tensor.type
                )
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            file: BinaryIO = writer.fout[0]
            writer.write_padding(file, file.tell())
            for tensor in tensors:
                end = file.tell() + tensor.n_bytes
                if data is None:
                    file.truncate(file.seek(end))
                for piece in data(tensor) if data is not None else ():
                    # The buffer is handed over as it is: no copy of a piece is made.
                    file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
                    done += piece.nbytes
                    if on_bytes:
                        on_bytes(done, n_bytes)
                if file.tell() != end:
                    raise ValueError(f"{tensor.name} has {file.tell() - end:+} bytes of data over what was announced")
                writer.write_padding(file, tensor.n_bytes)
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

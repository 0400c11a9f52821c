"""The head of a GGUF file: metadata and the list of tensors, read without the weights.

Package gguf's reader builds Python objects for every token, which takes seconds for a vocabulary of 248,320; here an
array is decoded only when asked for. Layout: ggml/docs/gguf.md, versions 2 and 3, little-endian.
"""

import mmap
import struct
from typing import TYPE_CHECKING, Any

from mlsd.gguf_tools.tensor import Tensor, gguf_constants
from mlsd.records import Record

if TYPE_CHECKING:
    import gguf
else:
    gguf = gguf_constants()

Type = gguf.GGUFValueType
Buffer = mmap.mmap | bytes

_VERSIONS = (2, 3)
_MAX_DIMS = 4
# A gigabyte of nothing, which takes no room on a disk, holds 10^8 empty texts. Of those that exist the largest
# vocabulary has 262,144 tokens, three arrays of as many items, and 10,000 tensors are many.
_MOST_VALUES, _MOST_TENSORS, _MOST_ITEMS, _MOST_TEXT_BYTES = 1 << 16, 1 << 18, 1 << 23, 1 << 24
_FORMATS: dict[gguf.GGUFValueType, struct.Struct] = {
    Type.UINT8: struct.Struct("<B"),
    Type.INT8: struct.Struct("<b"),
    Type.UINT16: struct.Struct("<H"),
    Type.INT16: struct.Struct("<h"),
    Type.UINT32: struct.Struct("<I"),
    Type.INT32: struct.Struct("<i"),
    Type.FLOAT32: struct.Struct("<f"),
    Type.BOOL: struct.Struct("<?"),
    Type.UINT64: struct.Struct("<Q"),
    Type.INT64: struct.Struct("<q"),
    Type.FLOAT64: struct.Struct("<d"),
}
_U32, _U64 = _FORMATS[Type.UINT32], _FORMATS[Type.UINT64]


class HeaderError(ValueError):
    """The bytes are no GGUF header; the message says why."""


class Value(Record, frozen=True, kw_only=True):
    """One metadata value, still encoded: its type, its items' type and count if it is an array, and where it starts."""

    type: gguf.GGUFValueType
    item_type: gguf.GGUFValueType | None = None
    length: int = 1
    start: int  # of the first item


class TensorEntry(Record, frozen=True, kw_only=True):
    """One tensor and the place of its data, counted from the start of the file."""

    tensor: Tensor
    start: int


class Header:
    """The parsed head of a file that is mapped into memory."""

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self._at = self._n_items = 0
        self.values: dict[str, Value] = {}
        try:
            self._read()
        except (struct.error, OverflowError) as error:  # a length beyond any address is beyond the end, too
            raise HeaderError(f"it ends within its header, after {len(data)} bytes") from error
        except UnicodeDecodeError as error:
            raise HeaderError("a name in its header is not text") from error

    def _read(self) -> None:
        magic, version, n_tensors, n_values = struct.unpack_from("<4sIQQ", self._data)
        if magic != b"GGUF":
            raise HeaderError(f"it starts with {magic!r}")
        if version not in _VERSIONS:
            raise HeaderError(f"its version is {version}, and {_VERSIONS} are known")
        if n_values > _MOST_VALUES or n_tensors > _MOST_TENSORS:
            raise HeaderError(f"it claims {n_values:,} values and {n_tensors:,} tensors")
        self._at = struct.calcsize("<4sIQQ")
        for _ in range(n_values):
            key = self._text()
            self.values[key] = self._skip_value()
        alignment = self.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise HeaderError(f"its alignment is {ascii(alignment)[:40]}, no power of two")
        listed_tensors = [self._tensor() for _ in range(n_tensors)]
        self.data_start = -(-self._at // alignment) * alignment
        self.tensors = {
            tensor.name: TensorEntry(tensor=tensor, start=self.data_start + offset) for tensor, offset in listed_tensors
        }
        if len(self.tensors) != len(listed_tensors):
            raise HeaderError("two of its tensors have one name")

    def get(self, key: str, default: Any = None) -> Any:
        """The decoded value of a key, or `default` when there is none; HeaderError for text that is none."""
        value = self.values.get(key)
        if value is None:
            return default
        if value.item_type in _FORMATS:
            letter = _FORMATS[value.item_type].format.lstrip("<")
            return list(struct.unpack_from(f"<{value.length}{letter}", self._data, value.start))
        items, at = [], value.start
        try:
            for _ in range(value.length):
                item, at = self._decode(value.item_type or value.type, at)
                items.append(item)
        except UnicodeDecodeError as error:
            raise HeaderError(f"its {key} is not text") from error
        return items if value.item_type else items[0]

    # --- walking over the bytes -----------------------------------------------------------------------------------

    def _number(self, form: struct.Struct) -> int:
        (number,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return int(number)

    def _text(self) -> str:
        text, self._at = self._decode(Type.STRING, self._at)
        return str(text)

    def _decode(self, kind: gguf.GGUFValueType, at: int) -> tuple[Any, int]:
        """One item at byte `at`, and the byte after it."""
        if kind is not Type.STRING:
            form = _FORMATS[kind]
            return form.unpack_from(self._data, at)[0], at + form.size
        (length,) = _U64.unpack_from(self._data, at)
        start, end = at + _U64.size, at + _U64.size + length
        if end > len(self._data):
            raise struct.error
        if length > _MOST_TEXT_BYTES:
            raise HeaderError(f"it has a text of {length:,} bytes")
        return self._data[start:end].decode("utf-8"), end

    def _type(self) -> gguf.GGUFValueType:
        number = self._number(_U32)
        try:
            return Type(number)
        except ValueError:
            raise HeaderError(f"it has a value of unknown type {number}") from None

    def _skip_value(self) -> Value:
        kind = self._type()
        if kind is not Type.ARRAY:
            value = Value(type=kind, start=self._at)
            self._skip_items(kind, 1)
            return value
        item = self._type()
        if item is Type.ARRAY:
            raise HeaderError("it has an array of arrays")
        length = self._number(_U64)
        self._n_items += length
        if self._n_items > _MOST_ITEMS:
            raise HeaderError(f"its arrays hold more than {_MOST_ITEMS:,} items")
        value = Value(type=kind, item_type=item, length=length, start=self._at)
        self._skip_items(item, length)
        return value

    def _skip_items(self, kind: gguf.GGUFValueType, length: int) -> None:
        at, data = self._at, self._data
        if kind is Type.STRING:
            read, size = _U64.unpack_from, _U64.size
            for _ in range(length):
                at += size + read(data, at)[0]
        else:
            at += length * _FORMATS[kind].size
        if at > len(data):
            raise struct.error
        self._at = at

    def _tensor(self) -> tuple[Tensor, int]:
        name = self._text()
        n_dims = self._number(_U32)
        if not 1 <= n_dims <= _MAX_DIMS:
            raise HeaderError(f"tensor {name!a} has {n_dims} dimensions")
        dims = tuple(self._number(_U64) for _ in range(n_dims))
        number = self._number(_U32)
        try:
            kind = gguf.GGMLQuantizationType(number)
        except ValueError:
            raise HeaderError(f"tensor {name!a} is of unknown type {number}") from None
        if 0 in dims or dims[0] % gguf.GGML_QUANT_SIZES[kind][0]:
            raise HeaderError(f"tensor {name!a} has rows of {dims[0]} weights, which {kind.name} cannot pack")
        return Tensor(name=name, dims=dims, type=kind), self._number(_U64)

"""An existing GGUF file: opened safely, its metadata and raw tensor data at hand.

What a header says is somebody's claim: whoever needs a count, a number, a text or a flag asks for one, here, and gets
it or the one error of a damaged file.
"""

from __future__ import annotations

import functools
import mmap
import sys
import time
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, overload

import msgspec
from msgspec import Meta

from mlsd.errors import ModelFileError
from mlsd.gguf_tools.tensor import Tensor

if TYPE_CHECKING:
    import gguf
    import numpy as np
    import numpy.typing as npt

    from mlsd.gguf_tools.header import Header, Value

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Floats: TypeAlias = "npt.NDArray[np.float32]"

_PIECE_BYTES = 1 << 25
_Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]  # llama.cpp keeps counts in 32 bits
_Counts = Annotated[list[_Count], Meta(min_length=1)]
_Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_MOST_SHARDS = (1 << 16) - 1  # it writes their number in 16
_MOST_BLOCKS = 10_000  # of a split model, whose tensors lie in other files
_SETTLED_NS = 2_000_000_000  # after its last change a file of the same size and time holds the same


def _damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{path} is truncated or damaged: {why}.", hint="Download or write the file again.")


@functools.lru_cache(maxsize=16)
def _parsed(path: Path, inode: int, n_bytes: int, mtime_ns: int) -> tuple[mmap.mmap, Header]:
    """A file mapped into memory and its header, read once for all who ask of one file. Raises: ModelFileError."""
    from mlsd.gguf_tools.header import Header, HeaderError

    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from error
    except ValueError as error:
        raise ModelFileError(f"{path} is empty.", hint="Download or write the file again.") from error
    if mapped[:4] != b"GGUF":
        raise ModelFileError(f"{path} is not a GGUF file: it starts with {mapped[:4]!r}.", hint="Give a GGUF model.")
    try:
        header = Header(mapped)
    except HeaderError as error:
        raise _damaged(path, str(error)) from error
    for entry in header.tensors.values():
        end = entry.start + entry.tensor.n_bytes
        if end > len(mapped):
            name = ascii(entry.tensor.name)
            raise _damaged(path, f"tensor {name} ends at byte {end:,} and the file at {len(mapped):,}")
    return mapped, header


class Source:
    """A GGUF file mapped for reading; weights stay on disk until they are asked for."""

    def __init__(self, path: Path) -> None:
        """Open and check the file. Raises: ModelFileError when it is missing, not a GGUF, or truncated."""
        self.path = path
        if not path.is_file():
            raise ModelFileError(f"There is no model file {path}.", hint="Give the path of a GGUF file.")
        status = path.stat()
        is_new = time.time_ns() - status.st_mtime_ns < _SETTLED_NS
        read = _parsed.__wrapped__ if is_new else _parsed
        self._map, self._header = read(path, status.st_ino, status.st_size, status.st_mtime_ns)

    def damaged(self, why: str) -> ModelFileError:
        return _damaged(self.path, why)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture", "", prefixed=False)

    @property
    def n_shards(self) -> int:
        """Files the model is split into; this is one of them."""
        count = self.count("split.count", 1, prefixed=False) or 1
        if count > _MOST_SHARDS:
            raise self.damaged(f"it claims to be one of {count} files")
        return count

    @property
    def n_blocks(self) -> int | None:
        """Blocks, multi-token-prediction blocks included; None when the file does not say. Raises: ModelFileError."""
        count = self.count("block_count", None)
        most = _MOST_BLOCKS if self.n_shards > 1 else len(self._header.tensors)
        if count is not None and count > most:
            raise self.damaged(f"it claims {count} blocks, and tensors for {most} at most")
        return count

    def require_whole(self) -> None:
        """Refuse one shard of a model. Raises: ModelFileError."""
        if self.n_shards > 1:
            raise ModelFileError(
                f"{self.path} is one of {self.n_shards} files of a model.",
                hint="Join them first: llama-gguf-split --merge.",
            )

    def shards(self) -> list[Source]:
        """All files of the model, this one included, in order. Raises: ModelFileError when one is missing."""
        if self.n_shards == 1:
            return [self]
        count = self.n_shards
        stem = self.path.name.rpartition("-of-")[0].rpartition("-")[0]
        names = (f"{stem}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1))
        return [Source(self.path.with_name(name)) for name in names]

    @property
    def values(self) -> Mapping[str, Value]:
        """The metadata, still encoded."""
        return self._header.values

    @property
    def tensors(self) -> list[Tensor]:
        return [entry.tensor for entry in self._header.tensors.values()]

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value as it is, or `default` when the key is not there."""
        from mlsd.gguf_tools.header import HeaderError

        try:
            return self._header.get(key, default)
        except HeaderError as error:
            raise self.damaged(str(error)) from error

    # Typed values: of keys under the architecture's prefix, with `prefixed=False` of whole keys.

    @overload
    def count(self, key: str, default: int = 0, *, prefixed: bool = True) -> int: ...
    @overload
    def count(self, key: str, default: None, *, prefixed: bool = True) -> int | None: ...
    def count(self, key: str, default: int | None = 0, *, prefixed: bool = True) -> int | None:
        """One whole number from 0 on. Raises: ModelFileError, also where every block has its own."""
        value = self._typed(key, _Count, "a count", prefixed)
        return default if value is None else int(value)

    def counts(self, key: str) -> tuple[int, ...] | None:
        """Whole numbers from 0 on, one a block or a single one for all; None when the key is not there."""
        value = self._typed(key, _Counts | _Count, "a count or one for each block")
        return None if value is None else tuple(value) if isinstance(value, list) else (value,)

    def of_blocks(self, key: str, n_blocks: int) -> tuple[int, ...] | None:
        """`counts` with one for each of the first `n_blocks` blocks."""
        counts = self.counts(key)
        if counts is None or not self.is_array(f"{self.architecture}.{key}"):
            return None if counts is None else counts * n_blocks
        if len(counts) < n_blocks:
            raise self._misfit(key, list(counts), f"one count for each of {n_blocks} blocks")
        return counts[:n_blocks]

    def number(self, key: str, default: float) -> float:
        """One finite number."""
        value = self._typed(key, _Number, "a number")
        return default if value is None else float(value)

    def text(self, key: str, default: str, *, prefixed: bool = True) -> str:
        value = self._typed(key, str, "a text", prefixed)
        return default if value is None else str(value)

    def flags(self, key: str, *, prefixed: bool = True) -> tuple[bool, ...]:
        """Yes or no, one a block or a single one for all; empty when the key is not there."""
        value = self._typed(key, list[bool | int] | bool | int, "yes or no", prefixed)
        return () if value is None else tuple(map(bool, value if isinstance(value, list) else [value]))

    def _typed(self, key: str, kind: Any, wanted: str, prefixed: bool = True) -> Any:
        value = self.get(f"{self.architecture}.{key}" if prefixed else key)
        try:
            return None if value is None else msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise self._misfit(key, value, wanted) from None

    def _misfit(self, key: str, value: Any, wanted: str) -> ModelFileError:
        return self.damaged(f"its {key} is {ascii(value)[:60]}, not {wanted}")

    def texts(self, key: str) -> list[str]:
        """An array of texts; empty where it is not there."""
        texts: list[str] = self._typed(key, list[str], "a list of texts", False) or []
        return texts

    def length(self, key: str) -> int | None:
        """Number of items of an array, which is not decoded; None when the key is not there."""
        value = self.values.get(key)
        return None if value is None else value.length

    def is_array(self, key: str) -> bool:
        return (value := self.values.get(key)) is not None and value.item_type is not None

    def data(self, name: str) -> Bytes:
        """The raw bytes of one tensor, mapped from the file and read-only."""
        import numpy as np

        entry = self._header.tensors[name]
        return np.frombuffer(self._map, dtype=np.uint8, count=entry.tensor.n_bytes, offset=entry.start)

    def pieces(self, tensor: Tensor) -> Iterator[Bytes]:
        """The raw bytes of one tensor in consecutive pieces of whole blocks."""
        import gguf

        raw = self.data(tensor.name)
        _, block_bytes = gguf.GGML_QUANT_SIZES[tensor.type]
        step = max(1, _PIECE_BYTES // block_bytes) * block_bytes
        for start in range(0, len(raw), step):
            yield raw[start : start + step]

    def copy_metadata(self, writer: gguf.GGUFWriter, *, skip: Container[str] = ()) -> None:
        """Copy every key to `writer` unchanged, but those in `skip` and the architecture (the writer has it)."""
        for key, value in self.values.items():
            # The writer refuses empty arrays; nothing that reads a GGUF tells them from a missing key.
            if key != "general.architecture" and key not in skip and value.length:
                writer.add_key_value(key, self.get(key), value.type, value.item_type)

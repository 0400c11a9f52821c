"""An existing GGUF file: opened safely, its metadata and raw tensor data at hand."""

from __future__ import annotations

import mmap
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from mlsd.errors import ModelFileError
from mlsd.gguf_tools.header import Header, HeaderError
from mlsd.gguf_tools.storage import Stored

Bytes = npt.NDArray[np.uint8]

_PIECE_BYTES = 1 << 25


class Source:
    """A GGUF file mapped for reading; weights stay on disk until they are asked for."""

    def __init__(self, path: Path) -> None:
        """Open and check the file.

        Raises: ModelFileError when it is missing, not a GGUF, or truncated.
        """
        self.path = path
        if not path.is_file():
            raise ModelFileError(f"There is no model file {path}.", hint="Give the path of a GGUF file.")
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from error
        except ValueError as error:
            raise ModelFileError(f"{path} is empty.", hint="Download or write the file again.") from error
        if self._map[:4] != b"GGUF":
            raise ModelFileError(
                f"{path} is not a GGUF file: it starts with {self._map[:4]!r}.", hint="Give a GGUF model."
            )
        try:
            self._header = Header(self._map)
        except HeaderError as error:
            raise self._damaged(str(error)) from error
        for entry in self._header.tensors.values():
            end = entry.start + entry.tensor.n_bytes
            if end > len(self._map):
                raise self._damaged(f"{entry.tensor.name} ends at byte {end:,} and the file at {len(self._map):,}")

    def _damaged(self, why: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is truncated or damaged: {why}.", hint="Download or write the file again.")

    @property
    def architecture(self) -> str:
        """The architecture's name, which is the prefix of its keys."""
        return str(self.get("general.architecture", ""))

    @property
    def n_shards(self) -> int:
        """Files the model is split into; this is one of them."""
        return int(self.get("split.count", 1) or 1)

    def require_whole(self) -> None:
        """Refuse one shard of a model. Raises: ModelFileError."""
        if self.n_shards > 1:
            raise ModelFileError(
                f"{self.path} is one of {self.n_shards} files of a model.",
                hint="Join them first: llama-gguf-split --merge.",
            )

    def shards(self) -> list[Source]:
        """All files of the model, this one included, in order.

        Raises: ModelFileError when one is missing.
        """
        if self.n_shards == 1:
            return [self]
        stem = self.path.name.rpartition("-of-")[0].rpartition("-")[0]
        names = [f"{stem}-{i:05d}-of-{self.n_shards:05d}.gguf" for i in range(1, self.n_shards + 1)]
        return [Source(self.path.with_name(name)) for name in names]

    @property
    def tensors(self) -> list[Stored]:
        """All tensors in file order."""
        return [entry.tensor for entry in self._header.tensors.values()]

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value, or `default` when the key is not there."""
        return self._header.get(key, default)

    def own(self, key: str, default: Any = None) -> Any:
        """A metadata value under the architecture's prefix."""
        return self.get(f"{self.architecture}.{key}", default)

    def length(self, key: str) -> int | None:
        """Number of items of an array, which is not decoded; None when the key is not there."""
        value = self._header.values.get(key)
        return None if value is None else value.length

    def is_array(self, key: str) -> bool:
        """Whether the key holds an array."""
        value = self._header.values.get(key)
        return value is not None and value.item_type is not None

    def value_type(self, key: str) -> tuple[gguf.GGUFValueType | None, gguf.GGUFValueType | None]:
        """Type of a value and of its items; (None, None) when the key is not there."""
        value = self._header.values.get(key)
        return (None, None) if value is None else (value.type, value.item_type)

    def keys(self) -> list[str]:
        """All metadata keys."""
        return list(self._header.values)

    def data(self, name: str) -> Bytes:
        """The raw bytes of one tensor, mapped from the file and read-only."""
        entry = self._header.tensors[name]
        return np.frombuffer(self._map, dtype=np.uint8, count=entry.tensor.n_bytes, offset=entry.start)

    def pieces(self, tensor: Stored) -> Iterator[Bytes]:
        """The raw bytes of one tensor in consecutive pieces of whole blocks."""
        raw = self.data(tensor.name)
        _, block_bytes = gguf.GGML_QUANT_SIZES[tensor.type]
        step = max(1, _PIECE_BYTES // block_bytes) * block_bytes
        for start in range(0, len(raw), step):
            yield raw[start : start + step]

    def copy_metadata(self, writer: gguf.GGUFWriter, *, skip: Container[str] = ()) -> None:
        """Copy every key to `writer` unchanged, but those in `skip` and the architecture (the writer has it)."""
        for key, value in self._header.values.items():
            # The writer refuses empty arrays; nothing that reads a GGUF tells them from a missing key.
            if key != "general.architecture" and key not in skip and value.length:
                writer.add_key_value(key, self.get(key), value.type, value.item_type)

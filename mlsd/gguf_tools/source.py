"""An existing GGUF file: opened safely, its metadata and raw tensor data at hand."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from mlsd.errors import ModelFileError
from mlsd.gguf_tools.storage import Stored

Bytes = npt.NDArray[np.uint8]

_PIECE_BYTES = 1 << 25


class Source:
    """A GGUF file opened for reading; the data stay on disk until they are asked for."""

    def __init__(self, path: Path) -> None:
        """Open and check the file.

        Raises: ModelFileError when it is missing, not a GGUF, or truncated.
        """
        self.path = path
        if not path.is_file():
            raise ModelFileError(f"There is no model file {path}.", hint="Give the path of a GGUF file.")
        try:
            with path.open("rb") as file:
                magic = file.read(4)
            if magic != b"GGUF":
                raise ModelFileError(f"{path} is not a GGUF file: it starts with {magic!r}.", hint="Give a GGUF model.")
            self._reader = gguf.GGUFReader(path)
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from error
        except (ValueError, IndexError, KeyError, UnicodeDecodeError, OverflowError) as error:
            raise ModelFileError(
                f"{path} is truncated or damaged: {error}.", hint="Download or write the file again."
            ) from error
        self._by_name = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def architecture(self) -> str:
        """The architecture's name, which is the prefix of its keys."""
        return str(self.get("general.architecture", ""))

    @property
    def tensors(self) -> list[Stored]:
        """All tensors in file order."""
        return [
            Stored(name=t.name, dims=tuple(int(n) for n in t.shape), type=t.tensor_type) for t in self._reader.tensors
        ]

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value, or `default` when the key is not there."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def own(self, key: str, default: Any = None) -> Any:
        """A metadata value under the architecture's prefix."""
        return self.get(f"{self.architecture}.{key}", default)

    def keys(self) -> list[str]:
        """All metadata keys."""
        return [name for name in self._reader.fields if not name.startswith("GGUF.")]

    def data(self, name: str) -> Bytes:
        """The raw bytes of one tensor, mapped from the file."""
        raw: Bytes = self._by_name[name].data.reshape(-1).view(np.uint8)
        return raw

    def pieces(self, tensor: Stored) -> Iterator[Bytes]:
        """The raw bytes of one tensor in consecutive pieces of whole blocks."""
        raw = self.data(tensor.name)
        _, block_bytes = gguf.GGML_QUANT_SIZES[tensor.type]
        step = max(1, _PIECE_BYTES // block_bytes) * block_bytes
        for start in range(0, len(raw), step):
            yield raw[start : start + step]

    def copy_metadata(self, writer: gguf.GGUFWriter, *, skip: Container[str] = ()) -> None:
        """Copy every key to `writer` unchanged, but those in `skip` and the architecture (the writer has it)."""
        for key in self.keys():
            field = self._reader.get_field(key)
            value = field.contents()
            if key == "general.architecture" or key in skip or (isinstance(value, list) and not value):
                continue
            writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)

"""Files of models that say or hold something else than the ones they were made of."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np

from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.stream import write_gguf
from mlsd.gguf_tools.tensor import Tensor

Data = Mapping[str, np.ndarray]
NOTHING: Mapping[str, Any] = MappingProxyType({})


def rewrite(source: Source, path: Path, changed: Mapping[str, Any] = NOTHING, data: Data = NOTHING) -> Source:
    """The file with other values under some keys (None: without the key) and other tensors (empty: without)."""
    tensors = [tensor for tensor in source.tensors if tensor.name not in data]
    for name, values in data.items():
        kind = gguf.GGMLQuantizationType.F32 if values.dtype == np.float32 else gguf.GGMLQuantizationType.I64
        tensors += [Tensor(name=name, dims=values.shape[::-1], type=kind)] if values.size else []

    def describe(writer: gguf.GGUFWriter) -> None:
        source.copy_metadata(writer, skip=changed)
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        for key, value in changed.items():
            if value is not None:
                add[type(value)](key, value)

    def read(tensor: Tensor) -> list[np.ndarray]:
        return [data[tensor.name] if tensor.name in data else source.data(tensor.name)]

    write_gguf(path, source.architecture, tensors, describe, read)
    return Source(path)

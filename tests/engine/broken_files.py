"""Model files that are whole but wrong."""

from pathlib import Path

import gguf
import numpy as np


def write_nan_norm(source: Path, target: Path, value: float = np.nan) -> None:
    """A copy whose last norm is NaN, or `value`: every logit of it is NaN, whatever the text."""
    data = bytearray(source.read_bytes())
    norm = next(t for t in gguf.GGUFReader(source).tensors if t.name == "output_norm.weight")
    start = int(norm.data_offset)
    data[start : start + norm.n_bytes] = np.full(norm.n_bytes // 4, value, dtype="<f4").tobytes()
    target.write_bytes(data)

"""llama.cpp's quantizer in its child process: what it writes loads, and what it refuses is explained."""

from pathlib import Path

import gguf
import pytest

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.quantize import quantize
from mlsd.errors import ModelFileError


def types_of(path: Path) -> set[str]:
    return {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def test_a_requantized_model_has_the_new_type_and_loads(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "q4.gguf"
    quantize(tiny / "llama.gguf", out, "Q4_0", n_threads=1)
    assert "Q4_0" in types_of(out)
    assert "Q4_0" not in types_of(tiny / "llama.gguf")
    LlamaModel(out, n_gpu_layers=0).close()


def test_an_unknown_type_is_named_and_nothing_is_left(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="Q9 is not a type"):
        quantize(tiny / "llama.gguf", tmp_path / "out.gguf", "Q9", n_threads=1)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_source_never_reaches_the_quantizer_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "cut.gguf"
    source.write_bytes((tiny / "llama.gguf").read_bytes()[:40_000])
    with pytest.raises(ModelFileError, match=r"cut\.gguf is truncated"):
        quantize(source, tmp_path / "out.gguf", "Q4_0", n_threads=1)
    assert list(tmp_path.iterdir()) == [source]

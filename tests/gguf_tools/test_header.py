import os
import struct
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsd.engine.llama.model import check_gguf
from mlsd.errors import ModelFileError
from mlsd.gguf_tools.header import Header, HeaderError
from mlsd.gguf_tools.source import Source

KINDS = gguf.GGUFValueType
VALUES = st.one_of(
    st.tuples(st.just(KINDS.UINT32), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(KINDS.INT64), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(KINDS.FLOAT32), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just(KINDS.BOOL), st.booleans()),
    st.tuples(st.just(KINDS.STRING), st.text(st.characters(codec="utf-8"), max_size=20)),
    st.tuples(st.just(KINDS.ARRAY), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5)),
    st.tuples(st.just(KINDS.ARRAY), st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=5)),
)


def write(path, values, tensors):
    writer = gguf.GGUFWriter(path, "llama")
    for i, (kind, value) in enumerate(values):
        writer.add_key_value(f"key.{i}", value, kind)
    for i, data in enumerate(tensors):
        writer.add_tensor(f"blk.{i}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@settings(max_examples=50)
@given(values=st.lists(VALUES, max_size=6), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_what_the_reference_writer_wrote_is_read_back(values, sizes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        tensors = [np.arange(size * 2, dtype=np.float32).reshape(2, size) for size in sizes]
        write(path, values, tensors)
        source = Source(path)
        assert source.architecture == "llama"
        for i, (_, value) in enumerate(values):
            assert source.get(f"key.{i}") == value
        for tensor, data in zip(source.tensors, tensors, strict=True):
            assert tensor.dims == data.shape[::-1]
            assert np.array_equal(source.data(tensor.name).view(np.float32), data.reshape(-1))


@settings(max_examples=60)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(share, tiny, tmp_path_factory):
    whole = (tiny / "llama.gguf").read_bytes()
    # The last bytes may be padding, which nobody misses; the last tensor's data end before them.
    cut = tmp_path_factory.mktemp("cut") / "cut.gguf"
    cut.write_bytes(whole[: int(share * (len(whole) - 32))])
    with pytest.raises(ModelFileError, match=r"truncated|empty|not a GGUF"):
        Source(cut)


@settings(max_examples=200)
@given(st.binary(max_size=80))
def test_noise_after_the_magic_never_ends_in_a_foreign_error(noise):
    with pytest.raises(HeaderError):
        Header(b"GGUF" + noise + b"\xff" * 64)


def _value(key: bytes, kind: int, rest: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + rest


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (_value(b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 10**8)), "more than 8,388,608 items"),
        (_value(b"llama.expert_used_count", 9, struct.pack("<IQ", 0, 10**9 - 500)), "more than 8,388,608 items"),
        (_value(b"general.name", 8, struct.pack("<Q", 10**9 - 500)), "a text of 999,999,500 bytes"),
    ],
)
def test_a_gigabyte_of_nothing_is_refused_at_once(values: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + values)
        file.truncate(10**9)
    started, memory = time.monotonic(), psutil.Process().memory_info().rss
    with pytest.raises(ModelFileError, match=reason):
        Source(path).text("general.name", "", prefixed=False)
    assert time.monotonic() - started < 10 and psutil.Process().memory_info().rss - memory < 100_000_000
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 10**12))
    with pytest.raises(ModelFileError, match="1,000,000,000,000 values"):
        Source(path)


def test_a_part_that_is_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path: Path) -> None:
    """By the process that would load it, too."""
    for number in (1, 2):
        writer = gguf.GGUFWriter(tmp_path / f"m-{number:05d}-of-00002.gguf", "llama")
        writer.add_uint16("split.count", 2)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    first, second = sorted(tmp_path.glob("*.gguf"))
    check_gguf(first)
    second.unlink()
    os.mkfifo(second)
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002.gguf is not a regular file|no model file .*m-00002"):
        check_gguf(first)

"""What a header claims is believed only where it can be: one error for a damaged file, no loop over what it says."""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Type

from mlsd.errors import ModelFileError
from mlsd.gguf_tools.read import model_facts, source_weight, trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers, choose_layers, plan_cut, refuse_unloadable, state_layers
from mlsd.gguf_tools.synthetic.synth import from_gguf
from mlsd.records import ModelRef

Keys = dict[str, tuple[Any, Type]]
GOOD: Keys = {
    "block_count": (2, Type.UINT32),
    "context_length": (128, Type.UINT32),
    "embedding_length": (32, Type.UINT32),
    "attention.head_count": (2, Type.UINT32),
    "attention.head_count_kv": (1, Type.UINT32),
    "full_attention_interval": (2, Type.UINT32),
}


def model(path: Path, changed: Keys | None = None, *, architecture: str = "qwen35", whole: Keys | None = None) -> Path:
    """A header with two blocks and these keys changed; `whole` names keys without the architecture's prefix."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, (value, kind) in {**GOOD, **(changed or {})}.items():
        writer.add_key_value(f"{architecture}.{key}", value, *_array(value, kind))
    for key, (value, kind) in (whole or {}).items():
        writer.add_key_value(key, value, *_array(value, kind))
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.1.ffn_up.weight"):
        writer.add_tensor(name, np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _array(value: Any, kind: Type) -> tuple[Type, Type | None]:
    return (Type.ARRAY, kind) if isinstance(value, list) else (kind, None)


def read_everything(path: Path) -> None:
    """Every reader of a header that decides something before the native library sees the file."""
    source = Source(path)
    refuse_unloadable(source)
    model_facts(path, ref=ModelRef(id="x"))
    source_weight(source)
    source.count("context_length", None)
    attention_layers(source)
    state_layers(source)
    from_gguf(source)


def test_a_good_header_is_read_by_all(tmp_path: Path) -> None:
    read_everything(model(tmp_path / "m.gguf", architecture="llama"))


WRONG: dict[str, Keys] = {
    "block_count a text": {"block_count": ("two", Type.STRING)},
    "block_count a list": {"block_count": ([2, 2], Type.UINT32)},
    "block_count negative": {"block_count": (-2, Type.INT32)},
    "block_count 2^31": {"block_count": (1 << 31, Type.UINT32)},
    "block_count 2^31 - 1": {"block_count": ((1 << 31) - 1, Type.UINT32)},
    "more prediction blocks than blocks": {"nextn_predict_layers": (3, Type.UINT32)},
    "context_length a text": {"context_length": ("long", Type.STRING)},
    "head_count a text": {"attention.head_count": ("two", Type.STRING)},
    "head_count a float": {"attention.head_count": (2.5, Type.FLOAT32)},
    "too few heads listed": {"attention.head_count_kv": ([1], Type.UINT32)},
    "head_count_kv texts": {"attention.head_count_kv": (["a", "b"], Type.STRING)},
    "full_attention_interval 0": {"full_attention_interval": (0, Type.UINT32)},
    "full_attention_interval a text": {"full_attention_interval": ("x", Type.STRING)},
    "too few blocks said to be recurrent": {"attention.recurrent_layers": ([True], Type.BOOL)},
    "recurrent blocks as texts": {"attention.recurrent_layers": (["a", "b"], Type.STRING)},
    "expert_count a text": {"expert_count": ("many", Type.STRING)},
    "expert_used_count texts": {"expert_used_count": (["a"], Type.STRING)},
    "embedding_length a flag": {"embedding_length": (True, Type.BOOL)},
}


WHOLE: dict[str, Keys] = {
    "alignment a text": {"general.alignment": ("32", Type.STRING)},
    "alignment a float": {"general.alignment": (32.0, Type.FLOAT32)},
    "alignment 33": {"general.alignment": (33, Type.UINT32)},
    "name a number": {"general.name": (7, Type.UINT32)},
    "split count 2^31": {"split.count": (1 << 31, Type.UINT32)},
    "split count a text": {"split.count": ("x", Type.STRING)},
}


@pytest.mark.parametrize(
    ("changed", "whole"),
    [*((keys, {}) for keys in WRONG.values()), *(({}, keys) for keys in WHOLE.values())],
    ids=[*WRONG, *WHOLE],
)
def test_a_wrong_value_is_one_damaged_file_error_whoever_reads_it(tmp_path: Path, changed: Keys, whole: Keys) -> None:
    path = model(tmp_path / "m.gguf", changed, whole=whole)
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(ModelFileError, match="is truncated or damaged"):
            read_everything(path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("what", [b"tensor", b"value"])
def test_a_name_that_is_no_text_is_the_same_error(tmp_path: Path, what: bytes) -> None:
    path = model(tmp_path / "m.gguf", whole={"general.name": ("name of value", Type.STRING)})
    old = b"attn_q" if what == b"tensor" else b"name of"
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, b"\xff\xfe" + old[2:]))
    with pytest.raises(ModelFileError, match=r"damaged: .* is not text"):
        read_everything(path)


@pytest.mark.parametrize(
    ("architecture", "heads", "layers"), [("mamba2", 0, ()), ("mamba2", [0, 0], ()), ("jamba", [0, 2], (1,))]
)
def test_heads_are_counted_by_block_and_none_is_what_converters_write_for_models_without_attention(
    tmp_path: Path, architecture: str, heads: int | list[int], layers: tuple[int, ...]
) -> None:
    changed = dict.fromkeys(("attention.head_count", "attention.head_count_kv"), (heads, Type.UINT32))
    path = model(tmp_path / "m.gguf", changed, architecture=architecture)
    assert attention_layers(Source(path)) == layers
    read_everything(path)


@pytest.mark.parametrize(
    ("dims", "message"), [((0, 4), "rows of 0 weights"), ((31, 4), "rows of 31 weights, which Q8_0 cannot pack")]
)
def test_a_tensor_that_cannot_be_packed_so_is_the_same_error(
    tmp_path: Path, dims: tuple[int, int], message: str
) -> None:
    path = model(tmp_path / "m.gguf")
    data = path.read_bytes()
    at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4
    kind = gguf.GGMLQuantizationType.Q8_0 if dims[0] else gguf.GGMLQuantizationType.F32
    path.write_bytes(
        data[:at] + dims[0].to_bytes(8, "little") + dims[1].to_bytes(8, "little") + kind.to_bytes(4, "little")
        + data[at + 20 :]
    )  # fmt: skip
    with pytest.raises(ModelFileError, match=message):
        read_everything(path)


def test_a_cut_of_a_file_that_lies_about_its_blocks_is_refused_at_once(tmp_path: Path) -> None:
    source = Source(model(tmp_path / "m.gguf", {"block_count": (1 << 30, Type.UINT32)}))
    plans: list[Callable[[], object]] = [
        lambda: trunk_layers(source),
        lambda: plan_cut(source, (0,)),
        lambda: choose_layers(trunk_layers(source) or 0),
    ]
    for plan in plans:
        with pytest.raises(ModelFileError, match="it claims 1073741824 blocks, and tensors for 4"):
            plan()

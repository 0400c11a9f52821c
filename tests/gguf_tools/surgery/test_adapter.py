"""Adapters as users have them: read in every float type, and refused when they are something else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlsd.errors import InputError
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.surgery.adapter import PUBLISHED_ROPE_BASE, Adapter
from tests.gguf_tools.adapters import config_of, random_weights, write_adapter, write_safetensors

SHAPE = TINY["llama"]
CONFIG = config_of(SHAPE)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_are_read_from_every_float_type(dtype: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", SHAPE)
    # Numbers of eight bits are the same in all three types.
    tensors = {name: np.round(16 * values) / 16 for name, values in random_weights(CONFIG).items()}
    write_safetensors(folder / "model.safetensors", tensors, dtype)
    adapter = Adapter(folder)
    for name, values in tensors.items():
        assert np.array_equal(adapter.weights(name), values)
        assert adapter.shape(name) == values.shape
    assert np.array_equal(Adapter(folder / "model.safetensors").weights("norm.weight"), tensors["norm.weight"])


def test_a_configuration_of_the_published_kind_leaves_things_out(tmp_path: Path) -> None:
    published = {"num_key_value_heads": None, "head_dim": None, "rope_theta": None, "rms_norm_eps": None}
    config = {**CONFIG, "num_key_value_heads": 2, "head_dim": 32}
    folder = write_adapter(tmp_path / "adapter", SHAPE, **published)
    write_safetensors(folder / "model.safetensors", random_weights(config))
    read = Adapter(folder).config
    assert (read.n_head_kv, read.head_width) == (2, 32)
    assert (read.rope_base, read.rms_norm_eps) == (PUBLISHED_ROPE_BASE, 1e-6)
    assert read.scaling == {}
    newer = {"rope_type": "default", "rope_theta": 5e5}  # base and scaling in one place
    folder = write_adapter(tmp_path / "newer", SHAPE, rope_theta=None, rope_parameters=newer)
    assert (Adapter(folder).config.rope_base, Adapter(folder).config.scaling) == (5e5, {})


def test_other_weights_or_another_configuration_are_other_content(tmp_path: Path) -> None:
    adapters = [
        write_adapter(tmp_path / "a", SHAPE, seed=1),
        write_adapter(tmp_path / "b", SHAPE, seed=2),
        write_adapter(tmp_path / "c", SHAPE, seed=1, rope_theta=5e5),
    ]
    assert len({Adapter(path).content for path in adapters}) == 3
    assert Adapter(write_adapter(tmp_path / "d", SHAPE, seed=1)).content == Adapter(adapters[0]).content


def test_what_takes_no_part_in_the_adapter_may_lie_beside_it(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", SHAPE)
    more = {"layers.0.self_attn.rotary_emb.inv_freq": np.ones(32), "lm_head.weight": np.ones((4, 64))}
    more |= {"embed_tokens.weight": np.ones((4, 64))}
    write_safetensors(folder / "model.safetensors", {**random_weights(CONFIG), **more})
    assert Adapter(folder).shape("norm.weight") == (64,)


def test_a_pickle_is_refused_and_the_way_out_is_told(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(
            InputError, match=r"is a pickle.*save_file\(torch\.load\('pytorch_model\.bin', weights_only"
        ):
            Adapter(path)
    write_safetensors(tmp_path / "model.safetensors", random_weights(CONFIG))
    assert Adapter(tmp_path).path.name == "model.safetensors"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "cannot be used: .*hidden_size"),
        ({"num_attention_heads": "two"}, "cannot be used"),
        ({"num_attention_heads": 0}, "below 1"),
        ({"num_hidden_layers": 32}, "has 32 layers; a Kangaroo adapter is one"),
        ({"head_dim": 32}, r"q_proj\.weight of .* has the shape \(128, 64\), and its configuration says \(64, 64\)"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        Adapter(write_adapter(tmp_path / "adapter", SHAPE, **changes))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("layers.0.mlp.up_proj.weight", "F32", r"has more than attention: layers\.0\.mlp"),
        ("layers.0.self_attn.q_proj.bias", "F32", r"more than attention: .*bias"),
        ("norm.weight", None, r"has no tensor norm\.weight"),
        ("norm.weight", "F64", "is stored as F64"),
    ],
)
def test_other_tensors_than_an_adapters_are_refused(name: str, kind: str | None, message: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", SHAPE)
    tensors = random_weights(CONFIG)
    tensors.pop(name, None)
    if kind is not None:
        tensors[name] = np.ones(64, dtype=np.float32)
    path = folder / "model.safetensors"
    write_safetensors(path, tensors)
    if kind == "F64":
        data, at = path.read_bytes(), path.read_bytes().index(b'"norm.weight"')
        path.write_bytes(data[:at] + data[at:].replace(b'"F32"', b'"F64"', 1))
    with pytest.raises(InputError, match=message):
        Adapter(folder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no adapter .*nowhere"):
        Adapter(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no adapter .*model\.safetensors"):
        Adapter(tmp_path)
    folder = write_adapter(tmp_path / "adapter", SHAPE)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        Adapter(folder)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_ends_early_or_is_something_else_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = write_adapter(tmp_path / "adapter", SHAPE)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    garbage = st.binary(max_size=64) | st.sampled_from([b"GGUF" * 9, (2).to_bytes(8, "little") + b"[]"])
    path.write_bytes(data.draw(st.integers(0, len(whole) - 1).map(lambda end: whole[:end]) | garbage))
    with pytest.raises(InputError):
        Adapter(folder)

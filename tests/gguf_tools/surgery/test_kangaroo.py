"""A composed draft computes its target's first blocks, then the adapter as published; what does not fit is refused."""

from collections.abc import Sequence
from math import pi
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import ReadTap, TappedContext
from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.shape import TINY, TINY_ATTENTION, Shape
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.adapter import Adapter
from mlsd.gguf_tools.surgery.edit import write_edit
from mlsd.gguf_tools.surgery.kangaroo import compose, interleaved, llama3_factors
from mlsd.gguf_tools.synthetic.write import write_random
from tests.gguf_tools.adapters import config_of, forward, random_weights, write_adapter
from tests.gguf_tools.rewritten import rewrite

TOKENS = list(range(40, 72))
# Several key heads, so that a wrong grouping shows; qwen2 has a base of its own, so that a wrong rotation does.
SHAPES: dict[str, Shape] = {
    "llama": msgspec.structs.replace(TINY["llama"], name="llama", n_head=4, n_head_kv=2, head_dim=32),
    "qwen2": msgspec.structs.replace(TINY_ATTENTION["qwen2"], n_head=4, n_head_kv=2, head_dim=16, rope_base=1e6),
}
QUERY = "layers.0.self_attn.q_proj.weight"
ROUNDING = 1e-3  # keys, values and what meets them are half-precision numbers in llama.cpp's memory
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


@pytest.fixture(scope="module")
def target(shape: Shape, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exact weights: what differs is then the arithmetic alone."""
    path = tmp_path_factory.mktemp("kangaroo") / f"{shape.name}.gguf"
    write_random(path, shape, seed=5, precision="F32")
    return path


def composed(target: Path, adapter: Path, exit_after: int, path: Path) -> Path:
    source = Source(target)
    write_edit(source, compose(source, Adapter(adapter), exit_after), path)
    return path


SESSION = ContextOptions(n_ctx=64, n_threads=1, max_outputs=32, device_sampling=False, flash_attention="off")


def session_of(model: LlamaModel) -> LlamaContext:
    return open_context(model, SESSION)


def logits_of(path: Path, tokens: Sequence[int] = TOKENS) -> Floats:
    with LlamaModel(path) as model, session_of(model) as session:
        session.decode(tokens, n_outputs=len(tokens))
        return session.logits()


def hidden_rows(target: Path, exit_after: int) -> Floats:
    """What the target's block `exit_after` - 1 hands on, read out of the running network."""
    with LlamaModel(target) as model, TappedContext(model, SESSION) as session:
        rows = dict[str, Floats]()
        with session.tapped(ReadTap(lambda name: name == f"l_out-{exit_after - 1}", rows.__setitem__)):
            session.decode(TOKENS, n_outputs=len(TOKENS))
        return rows[f"l_out-{exit_after - 1}"]


def head_of(target: Path, shape: Shape) -> Floats:
    return Source(target).data("output.weight").view("<f4").reshape(shape.n_vocab, shape.n_embd)


def distance(logits: Floats, expected: Floats) -> float:
    """The largest difference in units of the spread of the expected logits."""
    return float(np.abs(logits - expected).max() / expected.std())


@pytest.mark.parametrize("exit_after", [1, 2, 5])
def test_the_draft_computes_the_adapter_over_its_targets_rows(
    target: Path, shape: Shape, exit_after: int, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "adapter", shape, seed=exit_after)
    logits = logits_of(composed(target, adapter, exit_after, tmp_path / "draft.gguf"))
    config = config_of(shape)
    tensors, rows, head = random_weights(config, exit_after), hidden_rows(target, exit_after), head_of(target, shape)
    expected = forward(config, tensors, rows) @ head.T
    assert distance(logits, expected) < ROUNDING
    # Each part matters: another rotation, order of rows, grouping or norm lies far outside the rounding.
    swapped = {**tensors, "layers.0.self_attn.q_proj.weight": interleaved(tensors[QUERY], shape.n_head)}
    wrong = [
        forward({**config, "rope_theta": config["rope_theta"] * 2}, tensors, rows),
        forward(config, swapped, rows),
        forward(config, {**tensors, "norm.weight": np.ones(shape.n_embd, dtype=np.float32)}, rows),
        forward(config, tensors, hidden_rows(target, exit_after % 5 + 1)),
    ]
    for other in wrong:
        assert distance(logits, other @ head.T) > 20 * ROUNDING


@pytest.mark.parametrize("precision", ["F32", "F16", "Q8_0"])
def test_the_adapter_is_stored_as_precisely_as_the_targets_attention(precision: str, tmp_path: Path) -> None:
    shape = SHAPES["llama"]
    write_random(tmp_path / "target.gguf", shape, seed=1, precision=precision)
    adapter = write_adapter(tmp_path / "adapter", shape)
    draft = Source(composed(tmp_path / "target.gguf", adapter, 2, tmp_path / "draft.gguf"))
    types = {tensor.name: tensor.type.name for tensor in draft.tensors}
    assert {types[f"blk.2.attn_{part}.weight"] for part in ("q", "k", "v", "output")} == {precision}
    assert types["blk.2.ffn_up.weight"] == "Q4_0", "what adds nothing costs little"
    assert types["blk.2.attn_norm.weight"] == types["output_norm.weight"] == "F32"
    assert draft.count("block_count", None) == 3
    assert "Kangaroo adapter" in draft.get("general.name")


# --- a rotation that is stretched -----------------------------------------------------------------------------------

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def reference_factors(base: float, dim: int) -> Floats:
    """The rule, frequency by frequency."""
    factors = []
    for i in range(dim // 2):
        wavelength = 2 * pi * base ** (2 * i / dim)
        if wavelength < 64 / 4:
            factors.append(1.0)
        elif wavelength > 64 / 1:
            factors.append(8.0)
        else:
            smooth = (64 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    return np.array(factors, dtype=np.float32)


def test_frequencies_are_divided_as_llama3_divides_them() -> None:
    factors, expected = llama3_factors(LLAMA3, 32, 10_000.0), reference_factors(10_000.0, 32)
    assert np.allclose(factors, expected)
    assert (factors.min(), factors.max()) == (1, 8)
    assert len(set(factors.tolist())) > 2, "the smooth part is not tested"


def test_a_stretched_rotation_is_the_adapters_too(tmp_path: Path) -> None:
    shape = SHAPES["llama"]
    write_random(tmp_path / "plain.gguf", shape, seed=5, precision="F32")
    factors = reference_factors(shape.rope_base, shape.head_dim)
    table = {"rope_freqs.weight": factors}
    target = rewrite(Source(tmp_path / "plain.gguf"), tmp_path / "target.gguf", data=table).path
    adapter = write_adapter(tmp_path / "adapter", shape, rope_scaling=LLAMA3)
    logits = logits_of(composed(target, adapter, 2, tmp_path / "draft.gguf"))
    config, rows, head = config_of(shape), hidden_rows(target, 2), head_of(target, shape)
    assert distance(logits, forward(config, random_weights(config), rows, factors) @ head.T) < ROUNDING
    assert distance(logits, forward(config, random_weights(config), rows) @ head.T) > 20 * ROUNDING


@pytest.mark.parametrize(
    ("scaling", "keys", "has_table", "message"),
    [
        (None, {}, True, "by none here .* by rope_freqs.weight there"),
        (LLAMA3, {}, False, "by llama3 here .* by none there"),
        ({**LLAMA3, "factor": 4.0}, {}, True, "by llama3 here"),
        ({"type": "linear", "factor": 2.0}, {}, False, "by linear here"),
        (None, {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, False, "by yarn there"),
        (None, {"llama.rope.scaling.factor": 4.0}, False, "by linear there"),
        ({"rope_type": "llama3"}, {}, True, "does not say 'factor'"),
    ],
)
def test_a_rotation_stretched_in_one_of_them_only_is_refused(
    scaling: dict[str, Any] | None, keys: dict[str, Any], has_table: bool, message: str, tmp_path: Path
) -> None:
    shape = SHAPES["llama"]
    write_random(tmp_path / "plain.gguf", shape, seed=5)
    table = {"rope_freqs.weight": reference_factors(shape.rope_base, shape.head_dim)} if has_table else {}
    target = rewrite(Source(tmp_path / "plain.gguf"), tmp_path / "target.gguf", keys, table)
    adapter = Adapter(write_adapter(tmp_path / "adapter", shape, rope_scaling=scaling))
    with pytest.raises(InputError, match=message):
        compose(target, adapter, 2)


# --- what does not fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_base": 500_000.0}, r"base of the rotation \(rope_theta\) is 10000 here and 500000 there"),
        ({"rms_eps": 1e-5}, r"epsilon \(rms_norm_eps\) is 1e-06 here and 1e-05 there"),
        ({"n_embd": 128}, r"width \(hidden_size\) is 64 here and 128 there"),
        ({"n_head": 8}, r"heads \(num_attention_heads\) is 4 here and 8 there"),
        ({"n_head_kv": 4}, r"key heads \(num_key_value_heads\) is 2 here and 4 there"),
        ({"head_dim": 64}, r"a head \(head_dim\) is 32 here and 64 there"),
        ({"rope_dim": 16}, "rotated part of a head is 32 here and 16 there"),
    ],
)
def test_an_adapter_of_another_model_is_refused_by_the_number_that_differs(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    shape = SHAPES["llama"]
    write_random(tmp_path / "target.gguf", msgspec.structs.replace(shape, **change), seed=1)
    with pytest.raises(InputError, match=message):
        compose(Source(tmp_path / "target.gguf"), Adapter(write_adapter(tmp_path / "adapter", shape)), 2)


def test_a_configuration_without_a_base_means_the_published_one(tmp_path: Path) -> None:
    write_random(tmp_path / "target.gguf", SHAPES["qwen2"], seed=1)
    adapter = Adapter(write_adapter(tmp_path / "adapter", SHAPES["qwen2"], rope_theta=None))
    with pytest.raises(InputError, match=r"\(rope_theta\) is 10000 here and 1e\+06 there"):
        compose(Source(tmp_path / "target.gguf"), adapter, 2)


@pytest.mark.parametrize("name", ["qwen35", "falcon-h1", "qwen3", "gemma"])
def test_an_architecture_without_such_a_block_is_refused(tiny: Path, name: str, tmp_path: Path) -> None:
    path = tiny / f"{name}.gguf"
    if name == "gemma":  # nobody has tried it
        path = tmp_path / "gemma.gguf"
        path.write_bytes((tiny / "llama.gguf").read_bytes().replace(b"llama", b"gemma"))
    adapter = Adapter(write_adapter(tmp_path / "adapter", TINY["llama"]))
    with pytest.raises(ModelFileError, match=f"is a {name} model, whose blocks may compute more"):
        compose(Source(path), adapter, 2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"llama.expert_count": 8}, "choose among experts"),
        ({"llama.attention.head_count": [2] * 6}, "one attention.head_count for all blocks"),
        ({"llama.feed_forward_length": [192] * 6}, "differs from block to block"),
    ],
)
def test_a_model_whose_blocks_differ_or_have_experts_is_refused(
    tiny: Path, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    target = rewrite(Source(tiny / "llama.gguf"), tmp_path / "target.gguf", keys)
    with pytest.raises(ModelFileError, match=message):
        compose(target, Adapter(write_adapter(tmp_path / "adapter", TINY["llama"])), 2)

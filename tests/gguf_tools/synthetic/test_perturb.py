import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlsd.errors import InputError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.perturb import noisy, perturb
from mlsd.gguf_tools.synthetic.quantization import SYNTHETIC_TYPES

KINDS = [*SYNTHETIC_TYPES, "Q3_K", "IQ4_XS"]


def blocks_of(kind, seed, n_blocks=64):
    """Random blocks whose weights are of one size: a few large ones would weigh as much as all others together."""
    rng = np.random.default_rng(seed)
    if kind.name in ("F32", "F16", "BF16"):
        return gguf.quants.quantize(rng.standard_normal(4096).astype(np.float32), kind).view(np.uint8)
    _, size = gguf.GGML_QUANT_SIZES[kind]
    # Such bytes keep every half between 0.5 and 1, wherever it lies in the block.
    return rng.integers(0x38, 0x3C, n_blocks * size, dtype=np.uint8)


@pytest.mark.slow
@example(name="IQ4_NL", seed=876119, noise=0.01)  # 0.0122 where scales were of every size
@settings(max_examples=40)
@given(name=st.sampled_from(KINDS), seed=st.integers(0, 2**20), noise=st.sampled_from([0.01, 0.05, 0.2]))
def test_noise_is_as_large_as_asked_for_in_every_type(name, seed, noise):
    kind = gguf.GGMLQuantizationType[name]
    data = blocks_of(kind, seed, n_blocks=2000)
    changed = noisy(data, kind, noise, np.random.default_rng(seed + 1))
    before, after = (gguf.quants.dequantize(x, kind).reshape(-1).astype(np.float64) for x in (data, changed))
    measured = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert measured == pytest.approx(noise, rel=0.2)


@pytest.mark.parametrize("name", KINDS)
def test_no_noise_changes_no_byte(name):
    kind = gguf.GGMLQuantizationType[name]
    data = blocks_of(kind, 0)
    assert np.array_equal(noisy(data, kind, 0.0, np.random.default_rng(1)), data)


def test_a_perturbed_file_keeps_everything_but_its_weights(tiny, tmp_path):
    original = Source(tiny / "qwen35moe.gguf")
    perturb(original.path, tmp_path / "a.gguf", noise=0.01, seed=3)
    perturb(original.path, tmp_path / "b.gguf", noise=0.01, seed=3)
    copy = Source(tmp_path / "a.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert copy.tensors == original.tensors
    changed = {key for key in copy.values if copy.get(key) != original.get(key)}
    assert changed == {"general.name", "mlsd.noise", "mlsd.noise_seed"}
    assert not np.array_equal(copy.data("blk.0.attn_qkv.weight"), original.data("blk.0.attn_qkv.weight"))


def test_a_model_is_not_perturbed_onto_itself_nor_by_nonsense(tiny, tmp_path):
    with pytest.raises(InputError, match="onto itself"):
        perturb(tiny / "llama.gguf", tiny / "llama.gguf", noise=0.1)
    with pytest.raises(InputError, match="not a fraction"):
        perturb(tiny / "llama.gguf", tmp_path / "x.gguf", noise=-0.1)
    with pytest.raises(InputError, match="not a fraction"):
        perturb(tiny / "llama.gguf", tmp_path / "x.gguf", noise=float("nan"))

import tracemalloc

import gguf
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import ReadTap, TappedContext
from mlsd.errors import InputError
from mlsd.gguf_tools.shape import FULL, SYNTHETIC, TINY
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import keep_layers, write_edit
from mlsd.gguf_tools.synthetic.blocks import Pool, dequantized
from mlsd.gguf_tools.synthetic.quantization import SYNTHETIC_TYPES, more_bits
from mlsd.gguf_tools.synthetic.router import correlation_for, shared_experts
from mlsd.gguf_tools.synthetic.synth import from_gguf, from_shape, plan_synthetic, write_synthetic

# Weights of the text model, without vision tower and prediction block, as model cards and loaders count them; those of
# the small Qwen3.5 are derived from their configurations.
PARAMETERS = {
    "qwen3.5-122b-a10b": 122_110_000_000,
    "gemma-4-12b": 11_800_000_000,
    "gemma-4-26b-a4b": 25_200_000_000,
    "gemma-4-31b": 30_700_000_000,
    "qwen3.5-0.8b": 752_393_024,
    "qwen3.5-2b": 1_881_825_088,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_099_328,
    "gemma-3-12b": 11_765_788_416,
    "gemma-3-27b": 27_009_002_240,
    "mistral-7b": 7_248_023_552,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x7b": 46_702_792_704,
    "phi-4": 14_659_507_200,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
}
# Bytes of published Q8_0 files of the same shapes, tokenizer included.
Q8_0_FILES = {
    "qwen3.5-0.8b": 811_843_840,
    "qwen3.5-2b": 2_012_012_800,
    "qwen3.5-9b": 9_527_502_048,
    "qwen3.5-27b": 28_595_763_104,
    "qwen3.5-35b-a3b": 36_903_139_968,
}
KINDS = [gguf.GGMLQuantizationType[name] for name in SYNTHETIC_TYPES]
# Rows of 256 weights, which the blocks of every type divide.
WIDE = msgspec.structs.replace(TINY["llama"], name="wide", n_layers=2, n_embd=256, n_head=4, n_head_kv=2, n_ff=512)


@pytest.mark.parametrize("name", FULL)
def test_full_shapes_have_every_weight_of_the_real_models(name):
    # Gemma has more norms, and Mixtral fewer, than the graphs that they stand in.
    # A Gemma 4 has fewer and wider heads in each sixth layer; of it and of the 122B only billions are printed.
    stand_in = (
        0.02 if name.startswith("gemma-4") else 1e-4 if name.startswith(("gemma", "mixtral", "qwen3.5-122")) else 0
    )
    assert from_shape(FULL[name]).weight.total.n_parameters == pytest.approx(PARAMETERS[name], rel=stand_in)


@pytest.mark.parametrize("name", Q8_0_FILES)
def test_bytes_are_those_of_published_files_but_for_tokenizer_and_metadata(name):
    rest = Q8_0_FILES[name] - from_shape(FULL[name], quant="Q8_0").weight.total.n_bytes
    assert 10_900_000 < rest < 11_050_000


def test_one_token_of_the_mixture_reads_a_twelfth_of_it():
    weight = from_shape(FULL["qwen3.5-35b-a3b"]).weight
    assert weight.active.n_parameters == 2_946_429_568
    assert weight.expert.n_parameters == 3 * 2048 * 512
    assert weight.n_experts * weight.n_expert_layers * weight.expert.n_bytes == weight.routed.n_bytes
    assert weight.always + weight.routed + weight.lookup == weight.total


@pytest.mark.slow
@settings(max_examples=30)
@given(kind=st.sampled_from(KINDS), std=st.sampled_from([0.003, 0.02, 0.5]), seed=st.integers(0, 100))
def test_blocks_of_every_type_have_the_spread_asked_for(kind, std, seed):
    weights = dequantized(Pool(kind, std, seed).blocks[:3000], kind)
    assert np.isfinite(weights).all()
    assert weights.std() == pytest.approx(std, rel=0.06)
    assert abs(weights.mean()) < 0.05 * std


@settings(max_examples=20)
@given(n_blocks=st.integers(1, 600_000), seed=st.integers(0, 100))
def test_a_pool_gives_exactly_the_bytes_asked_for_and_no_lap_repeats(n_blocks, seed):
    pool = Pool(gguf.GGMLQuantizationType.Q8_0, 0.02, 0)
    pieces = [piece.copy() for piece in pool.pieces(n_blocks * 34, np.random.default_rng(seed))]
    assert sum(map(len, pieces)) == n_blocks * 34
    again = [piece.copy() for piece in pool.pieces(n_blocks * 34, np.random.default_rng(seed))]
    assert all(np.array_equal(a, b) for a, b in zip(pieces, again, strict=True))
    whole = np.concatenate(pieces).reshape(-1, 34)
    lap = len(pool.blocks)
    if n_blocks > lap + 1000:
        assert not np.array_equal(whole[:1000], whole[lap : lap + 1000])


@pytest.mark.slow
@pytest.mark.parametrize("quant", [*SYNTHETIC_TYPES, "Q4_K_M", "Q5_K_M"])
def test_llama_cpp_runs_every_type(quant, tmp_path):
    path = tmp_path / "x.gguf"
    write_synthetic(path, from_shape(WIDE, quant=quant), seed=4)
    with (
        LlamaModel(path) as model,
        open_context(
            model, ContextOptions(n_ctx=64, n_threads=1, n_batch=32, max_outputs=32, device_sampling=False)
        ) as context,
    ):
        context.decode(list(range(20)), n_outputs=20)
        logits = context.logits()
    assert np.isfinite(logits).all()
    assert 0.5 < logits.std() < 10
    assert Source(path).get(SYNTHETIC) is True


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_synthetic(tmp_path / name, from_shape(TINY["qwen35moe"], quant="Q4_0"), seed=seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", TINY)
def test_a_gguf_gives_its_shape_types_and_tokenizer(name, tiny, tmp_path):
    original = Source(tiny / f"{name}.gguf")
    write_synthetic(tmp_path / "x.gguf", from_gguf(original), seed=9)
    source = Source(tmp_path / "x.gguf")
    assert source.tensors == original.tensors
    assert source.get("tokenizer.ggml.tokens") == original.get("tokenizer.ggml.tokens")
    assert source.get("mlsd.seed") == 9
    assert not np.array_equal(source.data("token_embd.weight"), original.data("token_embd.weight"))
    assert np.array_equal(source.data("output_norm.weight"), original.data("output_norm.weight"))


def test_a_part_of_the_depth_keeps_the_cost_of_a_layer(tiny, tmp_path):
    whole, half = (from_gguf(Source(tiny / "qwen35moe.gguf"), n_layers=n) for n in (8, 4))
    assert (half.n_layers, half.n_layers_full) == (4, 8)
    assert half.weight.expert == whole.weight.expert
    assert half.weight.routed.n_bytes * 2 == whole.weight.routed.n_bytes
    recipe = from_gguf(Source(tiny / "qwen35moe.gguf"), n_layers=4)
    write_synthetic(tmp_path / "x.gguf", recipe)
    with LlamaModel(tmp_path / "x.gguf"):
        assert Source(tmp_path / "x.gguf").count("block_count", None) == 4


@pytest.mark.heavy
def test_memory_stays_constant_whatever_the_size(tmp_path):
    shape = msgspec.structs.replace(TINY["llama"], n_embd=2048, n_ff=8192, n_layers=4)
    recipe = from_shape(shape, quant="Q8_0")
    assert recipe.weight.total.n_bytes > 200_000_000
    tracemalloc.start()
    try:
        write_synthetic(tmp_path / "x.gguf", recipe)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000


# --- routers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("correlation", "quant"), [(0.0, "Q8_0"), (0.6, "Q4_0"), (0.9, "F16"), (0.9, "Q8_0")])
def test_tokens_share_as_many_experts_in_every_layer_as_the_correlation_says(correlation, quant, tmp_path):
    shape = msgspec.structs.replace(TINY["qwen35moe"], n_experts=128, n_experts_used=8, n_embd=256, n_ff_expert=32)
    write_synthetic(tmp_path / "x.gguf", from_shape(shape, quant=quant), router_correlation=correlation, seed=3)
    logits: dict[str, np.ndarray] = {}
    tokens = np.random.default_rng(0).choice(400, 64, replace=False).tolist()
    with (
        LlamaModel(tmp_path / "x.gguf") as model,
        TappedContext(model, ContextOptions(n_ctx=64, n_threads=1, n_batch=64, device_sampling=False)) as context,
        context.tapped(ReadTap(lambda name: name.startswith("ffn_moe_logits-"), logits.__setitem__)),
    ):
        context.decode(tokens)
    # The last block computes only the row that has an output.
    assert len(logits) == shape.n_layers
    layers = [rows for rows in logits.values() if len(rows) == len(tokens)]
    assert len(layers) >= shape.n_layers - 1
    pairs = np.triu_indices(len(tokens), 1)
    for rows in layers:
        assert np.corrcoef(rows)[pairs].mean() == pytest.approx(correlation, abs=0.1)
    chosen = [np.argsort(-rows, axis=1)[:, :8] for rows in layers]
    shared = np.mean([len(set(ids[i]) & set(ids[i + 1])) / 8 for ids in chosen for i in range(len(tokens) - 1)])
    assert shared == pytest.approx(shared_experts(correlation, 128, 8), abs=0.12)


@settings(max_examples=25)
@given(correlation=st.floats(0.01, 0.98), n_experts=st.sampled_from([16, 64, 256]), n_used=st.sampled_from([2, 4, 8]))
def test_the_correlation_is_found_again_from_the_shared_experts(correlation, n_experts, n_used):
    shared = shared_experts(correlation, n_experts, n_used)
    assert n_used / n_experts < shared < 1
    assert correlation_for(shared, n_experts, n_used) == pytest.approx(correlation, abs=0.01)


def test_tokens_cannot_share_fewer_experts_than_chance():
    assert shared_experts(0.0, 64, 8) == pytest.approx(8 / 64, abs=1e-3)
    with pytest.raises(InputError, match=r"chance: 8 of 64"):
        correlation_for(0.05, 64, 8)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "quant", "layers", "message"),
    [
        ("smollm2-135m", "Q4_K", None, "does not divide the rows of token_embd.weight"),
        ("smollm2-135m", "Q3_K", None, "cannot make random weights of type Q3_K"),
        ("smollm2-135m", "MAGIC", None, "MAGIC"),
        ("smollm2-135m", "Q8_0", 31, "has 30 layers"),
        ("smollm2-135m", "Q8_0", 0, "has 30 layers"),
    ],
)
def test_what_cannot_be_written_is_refused_when_it_is_planned(shape, quant, layers, message):
    with pytest.raises(InputError, match=message):
        from_shape(FULL[shape], quant=quant, n_layers=layers)


def test_a_full_disk_is_noticed_before_the_first_byte(tmp_path, monkeypatch):
    monkeypatch.setattr("mlsd.gguf_tools.synthetic.synth.free_bytes", lambda folder: 10**9)
    with pytest.raises(InputError, match=r"needs 9\.55 GB; .* has 1\.00 GB free"):
        write_synthetic(tmp_path / "sub" / "x.gguf", from_shape(FULL["qwen3.5-9b"]))
    assert not list(tmp_path.iterdir())


def test_the_shape_s_own_file_is_not_written_over_nor_a_shape_that_only_tells_bytes(tiny):
    path = tiny / "llama.gguf"
    with pytest.raises(InputError, match="no shape 'gemma-4-26b-a4b'"):
        plan_synthetic("gemma-4-26b-a4b")
    with pytest.raises(InputError, match="onto itself"):
        write_synthetic(path, from_gguf(Source(path)))


@given(n_layers=st.integers(1, 100))
def test_the_mixture_spends_more_bits_on_about_half_of_the_layers(n_layers):
    chosen = sum(more_bits(layer, n_layers) for layer in range(n_layers))
    assert chosen <= n_layers
    if n_layers >= 16:
        assert 0.35 < chosen / n_layers < 0.65


def runs(path):
    with LlamaModel(path) as model, open_context(model, ContextOptions(n_ctx=256, n_threads=1)) as session:
        session.decode((5, 6, 7))
        session.decode((8,))
        return bool(session.greedy())


def mixers(plan):
    """The kinds of mixer that the blocks of a planned model have."""
    parts = {tensor.part for tensor in plan.tensors}
    return {kind for kind, part in (("attention", "attn_q"), ("recurrent", "ssm_out")) if part in parts}


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "falcon-h1"])
@pytest.mark.parametrize("depth", range(1, 6))
def test_a_shallow_cut_of_a_hybrid_runs_or_is_refused(tmp_path, tiny, name, depth):
    shape = TINY[name]
    if depth > shape.n_layers:
        with pytest.raises(InputError, match=f"has {shape.n_layers} layers"):
            from_shape(shape, n_layers=depth)
        return
    path = tmp_path / "cut.gguf"
    makers = (
        lambda: from_shape(shape, n_layers=depth),
        lambda: from_gguf(Source(tiny / f"{name}.gguf"), n_layers=depth),
    )
    for make in makers:
        if depth == 1 and name != "falcon-h1":
            with pytest.raises(InputError, match="one layer") as error:
                make()
            assert "2 layers" in error.value.hint
            continue
        recipe = make()
        assert recipe.n_layers == depth
        assert mixers(recipe) == {"attention", "recurrent"}
        write_synthetic(path, recipe)
        assert runs(path)


def test_a_cut_of_a_cut_model_keeps_both_kinds_of_blocks_wherever_they_are(tmp_path, tiny):
    source = Source(tiny / "qwen35.gguf")
    attention_first = tmp_path / "first.gguf"
    write_edit(source, keep_layers(source, (3, 4, 5, 6)), attention_first)
    recipe = from_gguf(Source(attention_first), n_layers=2)
    assert mixers(recipe) == {"attention", "recurrent"}
    only = tmp_path / "only.gguf"
    write_edit(source, keep_layers(source, (3, 7)), only)
    assert mixers(from_gguf(Source(only), n_layers=1)) == {"attention"}  # it was so before

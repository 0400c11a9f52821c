import msgspec
import pytest

from mlsd.gguf_tools.shape import Shape, tensors
from mlsd.gguf_tools.shapes import TINY, TINY_ATTENTION
from mlsd.gguf_tools.source import Source

SHAPES = {**TINY, **TINY_ATTENTION}


@pytest.mark.parametrize("name", SHAPES)
def test_the_tensor_list_is_what_the_file_holds(name, tiny):
    listed = {(spec.name, spec.dims) for spec in tensors(SHAPES[name])}
    assert listed == {(tensor.name, tensor.dims) for tensor in Source(tiny / f"{name}.gguf").tensors}


def test_parameters_of_a_dense_model_follow_the_textbook_count():
    shape = Shape(
        name="x", architecture="llama", n_layers=3, n_embd=8, n_vocab=300, n_head=4, n_head_kv=2, head_dim=2, n_ff=20
    )
    block = 2 * 8 + 8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 20
    assert shape.n_parameters == 2 * 300 * 8 + 8 + 3 * block
    tied = msgspec.structs.replace(shape, tied_embeddings=True)
    assert tied.n_parameters == shape.n_parameters - 300 * 8


def test_every_fourth_block_of_a_hybrid_has_attention():
    shape = TINY["qwen35"]
    attention = [layer for layer in range(shape.n_layers) if not shape.is_recurrent(layer)]
    assert attention == [3, 7]
    assert all(TINY["falcon-h1"].is_recurrent(layer) for layer in range(4))


def test_a_prediction_block_has_attention_and_what_ties_it_to_the_trunk():
    shape = msgspec.structs.replace(TINY["qwen35"], n_mtp_blocks=1)
    extra = {spec.part for spec in tensors(shape) if spec.name.startswith("blk.8.")}
    assert {"attn_q", "ffn_down", "nextn"} <= extra
    assert "ssm_out" not in extra

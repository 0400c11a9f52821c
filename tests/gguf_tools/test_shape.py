import msgspec

from mlsd.gguf_tools.shapes import TINY, TINY_ATTENTION

SHAPES = {**TINY, **TINY_ATTENTION}


def test_every_fourth_block_of_a_hybrid_has_attention():
    shape = TINY["qwen35"]
    attention = [layer for layer in range(shape.n_layers) if not shape.is_recurrent(layer)]
    assert attention == [3, 7]
    assert all(TINY["falcon-h1"].is_recurrent(layer) for layer in range(4))


def test_a_prediction_block_has_attention_and_what_ties_it_to_the_trunk():
    shape = msgspec.structs.replace(TINY["qwen35"], n_mtp_blocks=1)
    extra = {tensor.part for tensor in shape.tensors if tensor.name.startswith("blk.8.")}
    assert {"attn_q", "ffn_down", "nextn"} <= extra
    assert "ssm_out" not in extra

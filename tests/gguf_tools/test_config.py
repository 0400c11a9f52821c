import json

import pytest

from mlsd.errors import InputError
from mlsd.gguf_tools.config import shape_from_config
from mlsd.gguf_tools.shape import tensors
from mlsd.gguf_tools.shapes import FULL

QWEN_MOE = {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 248320,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "rope_parameters": {"rope_theta": 10000000, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
    },
}
LLAMA = {
    "model_type": "llama",
    "tie_word_embeddings": True,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "rope_theta": 100000,
}


def write(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(("config", "name"), [(QWEN_MOE, "qwen3.5-35b-a3b"), (LLAMA, "smollm2-135m")])
def test_a_configuration_gives_the_known_shape(config, name, tmp_path):
    shape = shape_from_config(write(tmp_path, config))
    assert list(tensors(shape)) == list(tensors(FULL[name]))
    assert (shape.rope_dim or shape.head_dim) == (FULL[name].rope_dim or FULL[name].head_dim)
    assert (shape.rope_base, shape.rope_sections) == (FULL[name].rope_base, FULL[name].rope_sections)


def test_a_parallel_hybrid_is_read_too(tmp_path):
    config = {
        **LLAMA,
        "model_type": "falcon_h1",
        "mamba_d_conv": 4,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_n_heads": 24,
        "mamba_d_ssm": 1536,
    }
    shape = shape_from_config(write(tmp_path, config))
    assert shape.architecture == "falcon-h1"
    assert any(spec.part == "ssm_in" and spec.dims == (576, 1536 * 2 + 256 + 24) for spec in tensors(shape))


def test_dense_and_sparse_attention_models_of_qwen_are_read_too(tmp_path):
    dense, sparse = {**LLAMA, "model_type": "qwen2"}, {**LLAMA, "model_type": "qwen3_moe", "head_dim": 128}
    sparse |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    parts = {spec.part: spec.dims for spec in tensors(shape_from_config(write(tmp_path, sparse)))}
    assert parts["ffn_up_exps"] == (576, 96, 8)
    assert parts["attn_q_norm"] == (128,)
    assert "ffn_up" not in parts
    assert "ffn_up_shexp" not in parts
    names = {spec.name for spec in tensors(shape_from_config(write(tmp_path, dense)))}
    assert {"blk.29.attn_q.bias", "blk.29.attn_v.bias"} <= names
    plain = {spec.name for spec in tensors(shape_from_config(write(tmp_path, {**LLAMA, "model_type": "qwen3"})))}
    assert "blk.0.attn_k_norm.weight" in plain
    assert "blk.0.attn_k.bias" not in plain


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid JSON"),
        ('{"model_type": "bert"}', "type bert"),
        ('{"model_type": "llama"}', "does not say hidden_size"),
        ("[]", "Expected `object`"),
        ('{"model_type": "llama", "hidden_size": -1}', "hidden_size"),
        ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "hidden_size"),
    ],
)
def test_a_file_that_gives_no_shape_says_why(content, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        shape_from_config(path)
    with pytest.raises(InputError, match="cannot be read"):
        shape_from_config(tmp_path / "missing.json")

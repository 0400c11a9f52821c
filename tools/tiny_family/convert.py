"""Write a trained model as GGUF, laid out as llama.cpp's own converter lays out Qwen3.5 (conversion/qwen.py there).

Three things change on the way: norm weights are stored as 1 + w (the gated norm inside the delta net apart), `A_log` as
-exp(A_log), and value heads are reordered from "grouped by key head" to "tiled over key heads", the order in which
ggml broadcasts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from shapes import SHAPES
from tokenizers import Tokenizer
from tokens import SPECIAL

FORMATS = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
}
_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}

_BLOCK_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "eh_proj.weight": "nextn.eh_proj.weight",
    "enorm.weight": "nextn.enorm.weight",
    "hnorm.weight": "nextn.hnorm.weight",
    "shared_head_norm.weight": "nextn.shared_head_norm.weight",
}
_FULL_PRECISION = ("ssm_alpha", "ssm_beta", "ssm_conv1d", "ffn_gate_inp")
_FULL_PRECISION_HERE = ("in_proj_a", "in_proj_b", "conv1d", "mlp.gate.weight", "shared_expert_gate")


def _tiled(weight: np.ndarray, shape: dict[str, Any], head_dim: int, axis: int = 0, back: bool = False) -> np.ndarray:
    """Reorder value heads along `axis` from grouped by key head to tiled over key heads, or `back`."""
    keys = shape["linear_num_key_heads"]
    per_key = shape["linear_num_value_heads"] // keys
    order = np.arange(weight.shape[axis]).reshape(keys, per_key, head_dim).swapaxes(0, 1).reshape(-1)
    return np.take(weight, np.argsort(order) if back else order, axis=axis)


def _mixer(name: str, weight: np.ndarray, shape: dict[str, Any], back: bool = False) -> np.ndarray:
    """A delta-net tensor with its value heads (and its parametrisation) as llama.cpp wants them, or `back` as here."""
    width = shape["linear_value_head_dim"]
    n_qk = 2 * shape["linear_num_key_heads"] * shape["linear_key_head_dim"]
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        weight = weight.reshape(weight.shape[0], -1)
        return np.concatenate([weight[:n_qk], _tiled(weight[n_qk:], shape, width, back=back)])
    if name.endswith("in_proj_z.weight"):
        return _tiled(weight, shape, width, back=back)
    if name.endswith("out_proj.weight"):
        return _tiled(weight, shape, width, axis=1, back=back)
    if name.endswith("A_log"):
        return _tiled(np.log(-weight) if back else -np.exp(weight), shape, 1, back=back)
    if name.endswith(("in_proj_a.weight", "in_proj_b.weight", "dt_bias")):
        return _tiled(weight, shape, 1, back=back)
    return weight


def _is_plain_norm(name: str) -> bool:
    """Whether a norm's weight is stored as 1 + w: all are but the gated one inside the delta net."""
    return name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")


def gguf_tensors(state: dict[str, torch.Tensor], shape: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every tensor of a trained state dict under its GGUF name, float32, in GGUF's layout."""
    found: dict[str, np.ndarray] = {}
    for name, tensor in state.items():
        weight = tensor.detach().float().numpy()
        if _is_plain_norm(name):
            weight = weight + 1
        if name == "model.embed_tokens.weight":
            found["token_embd.weight"] = weight
        elif name == "model.norm.weight":
            found["output_norm.weight"] = weight
        elif name.startswith("model.layers."):
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            if rest == "mlp.experts.gate_up_proj":
                found[f"blk.{layer}.ffn_gate_exps.weight"], found[f"blk.{layer}.ffn_up_exps.weight"] = np.split(
                    weight, 2, axis=1
                )
                continue
            if "linear_attn" in rest:
                weight = _mixer(rest, weight, shape)
            elif rest == "mlp.shared_expert_gate.weight":
                weight = weight.reshape(-1)
            found[f"blk.{layer}.{_BLOCK_NAMES[rest]}"] = weight
        elif name != "lm_head.weight":
            raise ValueError(f"no GGUF name is known for the tensor {name}; add it to _BLOCK_NAMES")
    return found


def torch_state(path: Path, shape: dict[str, Any], names: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state dict that `write_gguf` wrote to `path`, as rounded there: `gguf_tensors` backwards.

    `names` is a state dict of the same model; its names and shapes say what to look for.
    """
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    found = {}
    for name, like in names.items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            weight = stored["token_embd.weight"]
        elif name == "model.norm.weight":
            weight = stored["output_norm.weight"]
        elif rest == "mlp.experts.gate_up_proj":
            parts = [stored[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up")]
            weight = np.concatenate(parts, axis=1)
        else:
            weight = stored[f"blk.{layer}.{_BLOCK_NAMES[rest]}"]
            if "linear_attn" in rest:
                weight = _mixer(rest, weight, shape, back=True)
        weight = weight - 1 if _is_plain_norm(name) else weight
        found[name] = torch.from_numpy(np.array(weight, dtype=np.float32)).reshape(like.shape)
    return found


def _architecture(writer: gguf.GGUFWriter, shape: dict[str, Any], n_mtp: int) -> None:
    """The keys llama.cpp reads to build the graph."""
    writer.add_vocab_size(shape["vocab_size"])
    writer.add_block_count(shape["num_hidden_layers"] + n_mtp)
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    rope = shape["rope_parameters"]
    writer.add_rope_dimension_count(int(shape["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(shape["linear_key_head_dim"])
    writer.add_ssm_group_count(shape["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(shape["linear_num_value_heads"])
    writer.add_ssm_inner_size(shape["linear_num_value_heads"] * shape["linear_value_head_dim"])
    writer.add_full_attention_interval(shape["layer_types"].index("full_attention") + 1)
    if n_mtp:
        writer.add_uint32(f"{writer.arch}.nextn_predict_layers", n_mtp)
    if "num_experts" in shape:
        writer.add_expert_count(shape["num_experts"])
        writer.add_expert_used_count(shape["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(shape["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(shape["shared_expert_intermediate_size"])
    else:
        writer.add_feed_forward_length(shape["intermediate_size"])


def _vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """The BPE vocabulary; id 0 ends a text, nothing is added in front of a prompt."""
    told = json.loads(tokenizer.to_str())
    names = sorted(told["model"]["vocab"], key=told["model"]["vocab"].__getitem__)
    types = [gguf.TokenType.CONTROL if name in SPECIAL else gguf.TokenType.NORMAL for name in names]
    writer.add_tokenizer_model("gpt2")
    # llama.cpp splits "trillion" as it splits "gpt-2", but leaves the spaces before punctuation in its output alone.
    writer.add_tokenizer_pre("trillion")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in told["model"]["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _keeps_f32(name: str, ndim: int) -> bool:
    """Norms, the router and the recurrence's own parameters are never rounded."""
    return ndim == 1 or any(part in name for part in (*_FULL_PRECISION, *_FULL_PRECISION_HERE))


def rounded(state: dict[str, torch.Tensor], kind: gguf.GGMLQuantizationType) -> dict[str, torch.Tensor]:
    """The state dict with every matrix as the file will hold it. Blocks lie along rows, so layout does not matter."""
    return {
        name: tensor
        if _keeps_f32(name, tensor.ndim)
        else torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(tensor.float().numpy(), kind), kind).copy())
        for name, tensor in state.items()
    }


def write_gguf(name: str, state: dict[str, torch.Tensor], tokenizer: Tokenizer, number_format: str, path: Path) -> None:
    """Write the model `name` with its matrices in `number_format`; norms, router and recurrence stay F32."""
    shape = SHAPES[name.removesuffix("-mtp")]
    tensors = gguf_tensors(state, shape)
    n_mtp = 1 if any(".nextn." in tensor for tensor in tensors) else 0
    writer = gguf.GGUFWriter(path, "qwen35moe" if "num_experts" in shape else "qwen35")
    writer.add_name(f"mlsd {name}")
    writer.add_description("Trained on the Python standard library to measure speculative decoding; see CARD.md.")
    writer.add_license("PSF-2.0")
    writer.add_file_type(_FILE_TYPES[number_format])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _architecture(writer, shape, n_mtp)
    _vocabulary(writer, tokenizer)
    for tensor, weight in tensors.items():
        kind = FORMATS["F32" if _keeps_f32(tensor, weight.ndim) else number_format]
        writer.add_tensor(tensor, gguf.quants.quantize(np.ascontiguousarray(weight), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

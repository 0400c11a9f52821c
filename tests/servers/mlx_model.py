"""One small Llama model twice: as a GGUF, and as the safetensors that mlx reads, from the same float32 weights."""

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def write_both(source: Path, folder: Path, gguf: Path) -> None:
    """Write the weights of a Llama GGUF in float32, as a GGUF and as a folder for mlx."""
    from safetensors.numpy import save_file

    reader = GGUFReader(source)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    weights = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    _write_gguf(reader, weights, gguf)
    folder.mkdir(parents=True)
    heads = {"q": metadata["llama.attention.head_count"], "k": metadata["llama.attention.head_count_kv"]}
    save_file({_name(n): _as_mlx(n, w, heads) for n, w in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config(metadata)))
    end = metadata["tokenizer.ggml.eos_token_id"]
    _write_tokenizer(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"], end, folder)


def _write_gguf(reader: GGUFReader, weights: dict[str, np.ndarray], path: Path) -> None:
    writer = GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for name, values in weights.items():
        writer.add_tensor(name, values, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return f"{NAMES[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{BLOCK[part]}.weight"


def _as_mlx(name: str, values: np.ndarray, heads: dict[str, int]) -> np.ndarray:
    """llama.cpp turns neighbouring pairs of a head, mlx its two halves: the rows of Q and K stand in another order."""
    for part, n in heads.items():
        if f".attn_{part}.weight" in name:
            rows, columns = values.shape
            pairs = values.reshape(n, rows // n // 2, 2, columns)
            return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))
    return np.ascontiguousarray(values)


def _config(metadata: dict[str, object]) -> dict[str, object]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": metadata["llama.embedding_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.attention.key_length"],
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": metadata["llama.rope.freq_base"],
        "vocab_size": metadata["llama.vocab_size"],
        "max_position_embeddings": metadata["llama.context_length"],
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
    }


def _write_tokenizer(tokens: list[str], merges: list[str], end: int, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, [p for p in pairs if {*p, "".join(p)} <= vocabulary.keys()]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(tokens[end], special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[end], "model_max_length": 4096})
    )

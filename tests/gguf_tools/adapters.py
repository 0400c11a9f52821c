"""Random Kangaroo adapters as files, and what they compute, written without llama.cpp, GGUF or mlsd."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlsd.gguf_tools.shape import Shape

Floats = npt.NDArray[np.float32]


def config_of(shape: Shape) -> dict[str, Any]:
    """The config.json of an adapter for models of that shape."""
    return {
        "model_type": "llama",
        "hidden_size": shape.n_embd,
        "num_attention_heads": shape.n_head,
        "num_key_value_heads": shape.n_head_kv,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "rms_norm_eps": shape.rms_eps,
        "rope_theta": shape.rope_base,
    }


def random_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, Floats]:
    """Tensors under the published names; spread so that attention is neither flat nor a copy of one row."""
    rng = np.random.default_rng(seed)
    n_embd, width = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    width_kv = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int, gain: float) -> Floats:
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    attention = "layers.0.self_attn."
    return {
        "layers.0.input_layernorm.weight": (1 + 0.2 * rng.standard_normal(n_embd)).astype(np.float32),
        f"{attention}q_proj.weight": matrix(width, n_embd, 1.5),
        f"{attention}k_proj.weight": matrix(width_kv, n_embd, 1.5),
        f"{attention}v_proj.weight": matrix(width_kv, n_embd, 1.0),
        f"{attention}o_proj.weight": matrix(n_embd, width, 1.0),
        "norm.weight": (1 + 0.2 * rng.standard_normal(n_embd)).astype(np.float32),
    }


def write_safetensors(path: Path, tensors: Mapping[str, Floats], dtype: str = "F32") -> None:
    """The file format in full: a length, a JSON head, the data."""
    data, head = b"", {}
    for name, values in tensors.items():
        if dtype == "BF16":
            raw = ((values.view(np.uint32) + 0x8000) >> 16).astype("<u2").tobytes()
        else:
            raw = values.astype("<f2" if dtype == "F16" else "<f4").tobytes()
        head[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    encoded = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def write_adapter(
    folder: Path, shape: Shape, *, seed: int = 0, dtype: str = "F32", silent: bool = False, **changes: Any
) -> Path:
    """A folder as users have it; `silent` makes the attention give zero, `changes` go into the configuration."""
    config = config_of(shape)
    tensors = random_weights(config, seed)
    if silent:
        tensors["layers.0.self_attn.o_proj.weight"][:] = 0
    folder.mkdir(parents=True, exist_ok=True)
    config |= changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    write_safetensors(folder / "model.safetensors", tensors, dtype)
    return folder


def forward(
    config: Mapping[str, Any], tensors: Mapping[str, Floats], hidden: Floats, factors: Floats | None = None
) -> Floats:
    """What the adapter makes of rows at positions 0, 1, ...: normed rows before the head, shape as `hidden`.

    As the authors' code: halves of a head are rotated against each other, attention is causal, keys and values are
    shared by groups of heads, a residual, a final norm. In double precision.
    """
    n_head, n_kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    x = hidden.astype(np.float64)
    normed = _rms_norm(x, tensors["layers.0.input_layernorm.weight"], config["rms_norm_eps"])
    q, k, v = (normed @ tensors[f"layers.0.self_attn.{part}_proj.weight"].T.astype(np.float64) for part in "qkv")
    frequencies = config["rope_theta"] ** (-np.arange(0, dim, 2) / dim) / (1.0 if factors is None else factors)
    angles = np.concatenate([np.outer(np.arange(len(x)), frequencies)] * 2, axis=1)

    def rotated(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        first, second = rows[:, : dim // 2], rows[:, dim // 2 :]
        result: npt.NDArray[np.float64] = rows * np.cos(angles) + np.concatenate([-second, first], axis=1) * np.sin(
            angles
        )
        return result

    outputs = []
    for head in range(n_head):
        group = head * n_kv // n_head
        queries = rotated(q[:, head * dim : (head + 1) * dim])
        keys, values = rotated(k[:, group * dim : (group + 1) * dim]), v[:, group * dim : (group + 1) * dim]
        scores = queries @ keys.T / np.sqrt(dim)
        scores[np.triu_indices(len(x), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs.append(weights / weights.sum(axis=1, keepdims=True) @ values)
    mixed = np.concatenate(outputs, axis=1) @ tensors["layers.0.self_attn.o_proj.weight"].T.astype(np.float64)
    return _rms_norm(x + mixed, tensors["norm.weight"], config["rms_norm_eps"]).astype(np.float32)


def _rms_norm(rows: npt.NDArray[np.float64], weights: Floats, epsilon: float) -> npt.NDArray[np.float64]:
    normed: npt.NDArray[np.float64] = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + epsilon) * weights
    return normed

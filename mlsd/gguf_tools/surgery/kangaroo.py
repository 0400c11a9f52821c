"""A Kangaroo draft as an ordinary GGUF: a target's first blocks, a trained adapter as the last one, the target's head.

llama.cpp has no graph of the adapter, but a block whose feed-forward half is zero computes it exactly. A file has one
rotation and one epsilon for all blocks, so an adapter trained with others than its target's is refused.
"""

from collections.abc import Iterator
from functools import partial
from math import pi
from typing import Any

import gguf
import msgspec
import numpy as np

from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.source import Bytes, Floats, Source
from mlsd.gguf_tools.surgery.adapter import FINAL_NORM, INPUT_NORM, KEY, OUTPUT, QUERY, VALUE, Adapter
from mlsd.gguf_tools.surgery.edit import Edit, TensorPiece, keep_layers
from mlsd.gguf_tools.tensor import Tensor

_Type = gguf.GGMLQuantizationType
_FLOATS = (_Type.F32, _Type.F16, _Type.BF16)
ARCHITECTURES = ("llama", "qwen2")
# A block's tensors -> the adapter's.
_PARTS = {
    "attn_norm.weight": INPUT_NORM,
    "attn_q.weight": QUERY,
    "attn_k.weight": KEY,
    "attn_v.weight": VALUE,
    "attn_output.weight": OUTPUT,
}
_PER_CENT = 1e-2
_TABLE = "rope_freqs.weight"
_SINGLE = 1e-6  # numbers of a GGUF are single-precision
_ROTATED = "rope.dimension_count"
_DEFAULT_BASE = 10_000.0  # what llama.cpp rotates with where a file does not say


def compose(source: Source, adapter: Adapter, exit_after: int) -> Edit:
    """The first `exit_after` blocks, the adapter, and the model's head. Raises: InputError, ModelFileError."""
    _check_architecture(source)
    n_layers = _number(source, "block_count")
    if not 1 <= exit_after < n_layers:
        raise InputError(
            f"An exit after block {exit_after} of {source.path.name} is not possible: it has {n_layers} blocks.",
            hint=f"Give the exit that the adapter was trained for, 1 to {n_layers - 1}.",
        )
    _check_numbers(source, adapter)
    _check_rotation(source, adapter)
    cut = keep_layers(source, range(exit_after))
    if any(isinstance(value, list) for value in cut.changed.values()):
        raise ModelFileError(
            f"{source.path.name} differs from block to block, so the adapter's value is unknown.",
            hint="Use a model whose blocks are all of one kind.",
        )
    pieces = [piece for piece in cut.pieces if piece.tensor.name != "output_norm.weight"]
    return Edit(
        pieces=(*pieces, *_adapter_pieces(source, adapter, exit_after)),
        changed={**cut.changed, f"{source.architecture}.block_count": exit_after + 1},
        removed=cut.removed,
        label=f"{exit_after} blocks and a Kangaroo adapter",
        layers=cut.layers,
    )


# --- what must fit --------------------------------------------------------------------------------------------------


def _check_architecture(source: Source) -> None:
    name, architecture = source.path.name, source.architecture
    if architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"{name} is a {architecture or 'nameless'} model, whose blocks may compute more than the adapter was "
            "trained with (recurrence, norms of queries and keys), and llama.cpp would put that into its block too.",
            hint=f"Kangaroo works on {' and '.join(ARCHITECTURES)}.",
        )
    if source.count("expert_count"):
        raise ModelFileError(
            f"The blocks of {name} choose among experts; the adapter's would have to as well.",
            hint="Kangaroo works on dense models.",
        )


def _check_numbers(source: Source, adapter: Adapter) -> None:
    config = adapter.config
    n_embd, n_head = _number(source, "embedding_length"), _number(source, "attention.head_count")
    head_dim = _number(source, "attention.key_length", n_embd // max(1, n_head))
    n_head_kv, n_rotated = _number(source, "attention.head_count_kv", n_head), _number(source, _ROTATED, head_dim)
    base = source.number("rope.freq_base", _DEFAULT_BASE)
    epsilon = source.number("attention.layer_norm_rms_epsilon", 0.0)
    pairs: tuple[tuple[str, float, float], ...] = (
        ("the width (hidden_size)", config.hidden_size, n_embd),
        ("the number of heads (num_attention_heads)", config.num_attention_heads, n_head),
        ("the number of key heads (num_key_value_heads)", config.n_head_kv, n_head_kv),
        ("the width of a head (head_dim)", config.head_width, head_dim),
        ("the rotated part of a head", config.head_width, n_rotated),
        ("the base of the rotation (rope_theta)", config.rope_base, base),
        ("the norms' epsilon (rms_norm_eps)", config.rms_norm_eps, epsilon),
    )
    for what, ours, theirs in pairs:
        if not np.isclose(ours, theirs, rtol=_SINGLE, atol=0.0):
            raise InputError(
                f"{adapter.path} and {source.path.name} do not fit: {what} is {ours:g} here and {theirs:g} there.",
                hint="Use the adapter that was trained for this model, with its own config.json.",
            )


def _check_rotation(source: Source, adapter: Adapter) -> None:
    """Refuse a rotation that is stretched in one of the two only, or otherwise."""
    config = adapter.config
    ours, theirs = str(config.scaling.get("rope_type", config.scaling.get("type", "none"))), _stretch(source)
    if ours == theirs == "none":
        return
    if ours == "llama3" and theirs == _TABLE:
        factors = llama3_factors(config.scaling, config.head_width, config.rope_base)
        table = source.data(_TABLE).view("<f4")
        if factors.shape == table.shape and np.allclose(factors, table, rtol=_PER_CENT):
            return
    raise InputError(
        f"{adapter.path} and {source.path.name} do not fit: the rotation is stretched by {ours} here (rope_scaling) "
        f"and by {theirs} there.",
        hint="One file has one rotation for all its blocks; use an adapter that was trained with the model's.",
    )


def _stretch(source: Source) -> str:
    """What stretches the model's rotation: a table's name, a rule's, or ``none``."""
    for tensor in source.tensors:
        if tensor.name.startswith("rope_"):
            return tensor.name
    factor = source.number("rope.scaling.factor", source.number("rope.scale_linear", 1.0)) or 1.0
    rule = source.text("rope.scaling.type", "linear")
    return "none" if rule == "none" or (rule == "linear" and factor == 1.0) else rule


def llama3_factors(scaling: dict[str, Any], head_dim: int, base: float) -> Floats:
    """By how much each frequency of the rotation is divided: shape (head_dim / 2,).

    With f_i = base^(-2i / head_dim), wavelength w_i = 2 pi / f_i, trained length L and bounds low < high:
    1 for w_i < L / high, `factor` for w_i > L / low, else 1 / ((1 - s) / factor + s) with
    s = (L / w_i - low) / (high - low). Source: Llama 3.1's reference code; transformers' rope type "llama3".

    Raises: InputError when the scaling does not say one of the numbers.
    """
    try:
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        factor, low, high, length = (float(scaling[key]) for key in keys)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"rope_scaling of the adapter does not say {error}.", hint="Is it the whole config.json?"
        ) from error
    wavelengths = 2 * pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((length / wavelengths - low) / (high - low), 0.0, 1.0)
    factors: Floats = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return factors


def _number(source: Source, key: str, default: int | None = None) -> int:
    value = None if source.is_array(f"{source.architecture}.{key}") else source.count(key, default)
    if value is None:
        raise ModelFileError(f"{source.path.name} does not give one {key} for all blocks.")
    return value


# --- the adapter's block --------------------------------------------------------------------------------------------


def _adapter_pieces(source: Source, adapter: Adapter, block: int) -> Iterator[TensorPiece]:
    block_tensors = {tensor.name.removeprefix("blk.0."): tensor for tensor in source.tensors if tensor.block == 0}
    missing = [part for part in _PARTS if part not in block_tensors]
    if missing:
        raise ModelFileError(f"Block 0 of {source.path.name} lacks {missing[0]}, which the adapter needs.")
    dtype = _matrix_type(block_tensors["attn_output.weight"], adapter)
    heads = {QUERY: adapter.config.num_attention_heads, KEY: adapter.config.n_head_kv}
    for part, name in {"output_norm.weight": FINAL_NORM, **_PARTS}.items():
        kind = dtype if "norm" not in part else _Type.F32
        prefix = f"blk.{block}." if part in _PARTS else ""
        tensor = Tensor(name=f"{prefix}{part}", dims=adapter.shape(name)[::-1], type=kind)
        n_head = heads.get(name, 0) if source.architecture == "llama" else 0
        yield TensorPiece(tensor=tensor, compute=partial(_stored, adapter, name, n_head, kind))
    # What else a block of the model has is zero, and so adds nothing.
    for part, tensor in block_tensors.items():
        if part not in _PARTS and part.endswith((".weight", ".bias")):
            zeros = msgspec.structs.replace(tensor, name=f"blk.{block}.{part}", type=_zero_type(tensor))
            yield TensorPiece(tensor=zeros)


def _stored(adapter: Adapter, name: str, n_head: int, kind: gguf.GGMLQuantizationType) -> Bytes:
    weights = adapter.weights(name)
    if n_head:
        weights = interleaved(weights, n_head)
    return np.ascontiguousarray(gguf.quants.quantize(weights, kind)).reshape(-1).view(np.uint8)


def interleaved(weights: Floats, n_head: int) -> Floats:
    """Query or key rows in llama.cpp's order, which rotates neighbouring rows (its converter's LlamaModel.permute)."""
    heads = weights.reshape(n_head, 2, weights.shape[0] // n_head // 2, *weights.shape[1:])
    return heads.swapaxes(1, 2).reshape(weights.shape)


def _matrix_type(attention: Tensor, adapter: Adapter) -> gguf.GGMLQuantizationType:
    """As precise as the model's own attention: its float type, else eight bits."""
    if attention.type in _FLOATS:
        return attention.type
    block, _ = gguf.GGML_QUANT_SIZES[_Type.Q8_0]
    whole = all(adapter.shape(name)[1] % int(block) == 0 for name in (QUERY, OUTPUT))
    return _Type.Q8_0 if whole else _Type.F16


def _zero_type(tensor: Tensor) -> gguf.GGMLQuantizationType:
    block, _ = gguf.GGML_QUANT_SIZES[_Type.Q4_0]
    if len(tensor.dims) == 1:
        return _Type.F32
    return _Type.Q4_0 if tensor.dims[0] % int(block) == 0 else _Type.F16

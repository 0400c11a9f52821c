"""A Kangaroo adapter as its users have it: a folder with config.json and one file of safetensors.

The published ones (Liu et al. 2024, arXiv 2404.18911) are an RMS norm, softmax attention with rotary positions, a
residual and a final RMS norm, between a model's exit layer and its LM head; there is no feed-forward part.
"""

import hashlib
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
from gguf.utility import LocalTensor, SafetensorsLocal

from mlsd.errors import InputError
from mlsd.gguf_tools.source import Floats
from mlsd.hashes import file_sha256
from mlsd.outside import parse, read_given
from mlsd.records import Record

PUBLISHED_ROPE_BASE = 10_000.0  # what the authors' adapter code uses, whatever its configuration says or leaves out
FINAL_NORM = "norm.weight"
INPUT_NORM = "layers.0.input_layernorm.weight"
_BLOCK = "layers."
_ATTENTION = "layers.0.self_attn."
QUERY, KEY, VALUE, OUTPUT = (f"{_ATTENTION}{part}_proj.weight" for part in "qkvo")
_CONSTANT = f"{_ATTENTION}rotary_emb.inv_freq"  # older files keep the rotation's frequencies as a tensor
_CONFIG, _WEIGHTS, _PICKLE = "config.json", "model.safetensors", "pytorch_model.bin"
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class AdapterConfig(Record, frozen=True, kw_only=True):
    """What an adapter's config.json says, under the names it has there."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int | None = None  # None: as many as there are heads
    head_dim: int | None = None  # None: the width divided by the heads
    num_hidden_layers: int = 1
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None  # newer files keep base and scaling here

    @property
    def n_head_kv(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rope_base(self) -> float:
        return float((self.rope_parameters or {}).get("rope_theta") or self.rope_theta or PUBLISHED_ROPE_BASE)

    @property
    def scaling(self) -> dict[str, Any]:
        """How the rotation is stretched beyond the trained length; empty for not at all."""
        scaling = {**(self.rope_scaling or {}), **(self.rope_parameters or {})}
        return {} if str(scaling.get("rope_type", scaling.get("type", "default"))) == "default" else scaling


class Adapter:
    """An opened adapter: every number about it is checked, its weights are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = _weights_file(path)
        self.config = _read_config(self.path.with_name(_CONFIG))
        self._tensors = _read_tensors(self.path)
        _check(self.path, self.config, self._tensors)

    @property
    def content(self) -> str:
        """Hash of weights and configuration: 16 hex digits."""
        weights, config = file_sha256(self.path), msgspec.json.encode(self.config, order="sorted")
        return hashlib.sha256(weights.encode() + config).hexdigest()[:16]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor: (outputs, inputs) of a projection."""
        return tuple(self._tensors[name].shape)

    def weights(self, name: str) -> Floats:
        """One tensor as float32."""
        tensor = self._tensors[name]
        kind = gguf.GGMLQuantizationType[tensor.dtype]
        floats: Floats = gguf.quants.dequantize(np.array(tensor.mmap_bytes()), kind).reshape(tensor.shape)
        return floats


def _weights_file(path: Path) -> Path:
    file = path / _WEIGHTS if path.is_dir() else path
    pickle = path / _PICKLE if path.is_dir() else path
    if pickle.is_file() and pickle.suffix in (".bin", ".pt", ".pth") and not (path.is_dir() and file.is_file()):
        raise InputError(
            f"{pickle} is a pickle, which can run any code while it is read.",
            hint=f'Convert it where torch and safetensors are: python -c "import torch, safetensors.torch as s; '
            f"s.save_file(torch.load('{pickle.name}', weights_only=True), '{_WEIGHTS}')\"",
        )
    if not file.is_file():
        raise InputError(
            f"There is no adapter {file}.", hint=f"Give a folder with {_CONFIG} and {_WEIGHTS}, or the latter's path."
        )
    return file


def _read_config(path: Path) -> AdapterConfig:
    hint = "It is the file that the adapter was trained with; its repository has it beside the weights."
    return parse(read_given(path, InputError, hint), AdapterConfig, str(path), hint=hint)


def _read_tensors(path: Path) -> dict[str, LocalTensor]:
    try:
        tensors: dict[str, LocalTensor] = SafetensorsLocal(path).tensors
        for name, tensor in tensors.items():
            span, n_bytes = tensor.data_range, int(np.prod(tensor.shape)) * _ITEM_BYTES.get(tensor.dtype, 0)
            if span.offset < 0 or span.offset + span.size > path.stat().st_size:
                raise ValueError(f"{name} ends beyond the file")
            if n_bytes and n_bytes != span.size:
                raise ValueError(f"{name} has {span.size} bytes for {n_bytes}")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path} is not a complete safetensors file: {error}.", hint="Download or write it again."
        ) from error
    return tensors


def _check(path: Path, config: AdapterConfig, tensors: dict[str, LocalTensor]) -> None:
    """Refuse what is not one block of attention between two norms."""
    if min(config.hidden_size, config.num_attention_heads, config.n_head_kv, config.head_width) < 1:
        raise InputError(f"{path.with_name(_CONFIG)} has a width or a number of heads below 1.")
    if config.num_hidden_layers != 1:
        raise InputError(
            f"{path} has {config.num_hidden_layers} layers; a Kangaroo adapter is one.", hint="Is it a whole model?"
        )
    width, n_q = config.hidden_size, config.num_attention_heads * config.head_width
    n_kv = config.n_head_kv * config.head_width
    shapes: dict[str, tuple[int, ...]] = {INPUT_NORM: (width,), FINAL_NORM: (width,)}
    shapes |= {QUERY: (n_q, width), KEY: (n_kv, width), VALUE: (n_kv, width), OUTPUT: (width, n_q)}
    for name, shape in shapes.items():
        if name not in tensors:
            raise InputError(f"{path} has no tensor {name}.", hint=f"A Kangaroo adapter has {', '.join(shapes)}.")
        if tensors[name].shape != shape:
            raise InputError(
                f"{name} of {path} has the shape {tensors[name].shape}, and its configuration says {shape}.",
                hint=f"{_CONFIG} belongs to another adapter, or is wrong.",
            )
        if tensors[name].dtype not in _ITEM_BYTES:
            raise InputError(
                f"{name} of {path} is stored as {tensors[name].dtype}.", hint=f"Save it as {', '.join(_ITEM_BYTES)}."
            )
    # Tensors outside the block (an embedding, a head) take no part in what the adapter computes.
    more = [name for name in tensors if name.startswith(_BLOCK) and name not in (*shapes, _CONSTANT)]
    if more:
        raise InputError(
            f"{path} has more than attention: {more[0]}.", hint="A Kangaroo adapter has no biases and no feed-forward."
        )

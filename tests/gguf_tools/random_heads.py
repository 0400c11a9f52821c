"""Drafting heads of random weights for a given target: what EAGLE-3 and DFlash are tried on without trained ones.

Tensor names and keys are those that llama.cpp's converter writes. What a random head proposes is noise, so its
acceptance says nothing of the method.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from mlsd.errors import InputError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.stream import add_keys, write_gguf
from mlsd.gguf_tools.synthetic.write import Floats, generator, random_weights
from mlsd.gguf_tools.tensor import Tensor, read_tensors

_N_HEAD = 2
_HEAD_DIM = 32
_RANK = 32  # of a Markov head and of a selector
_KERNEL, _GROUP = 3, 16  # of DFlash2's convolutions over a block
_Q8 = gguf.GGMLQuantizationType.Q8_0
_BLOCK = """attn_norm.weight width, attn_q.weight input heads, attn_k.weight input heads, attn_v.weight input heads,
    attn_output.weight heads width, ffn_norm.weight width, ffn_gate.weight width ff, ffn_up.weight width ff,
    ffn_down.weight ff width"""
_CONVOLUTIONS = """attn_conv_base width kernel 2, attn_conv_proj.weight width groups, ffn_conv_base width kernel 2,
    ffn_conv_proj.weight width groups"""


def write_random_eagle3(
    path: Path,
    target: Source,
    layers: Sequence[int],
    *,
    seed: int = 0,
    n_embd: int | None = None,
    n_vocab_draft: int | None = None,
    norm_before: bool = False,
    fixed: Mapping[str, Floats] | None = None,
) -> None:
    """An EAGLE-3 head that reads the rows of three `layers` of `target`.

    Of the target's width it uses the target's tables; of another width (`n_embd`), or with a reduced vocabulary
    (`n_vocab_draft` tokens), it has its own. `norm_before` turns on both optional norms; `fixed` are tensors that are
    not random, in numpy order (rows first).

    Raises: InputError when the file cannot be written.
    """
    n_target = _width(target)
    width = n_embd or n_target
    widths = _widths(target, len(layers), width, 2 * width, n_vocab_draft)
    outer = "fc.weight read width" + (", enc.output_norm.weight read" if norm_before else "")
    tensors = [*read_tensors(outer, widths), *_tables(widths, n_vocab_draft)]
    tensors += read_tensors(f"{_BLOCK}, attn_norm_2.weight width", widths, "blk.0.")
    keys = {
        "target_hidden_size": n_target,
        "target_layers": list(layers),
        "norm_before_residual": norm_before,
        "norm_before_fc": norm_before,
    }
    _write(path, "eagle3", target, tensors, {**_keys(width, 1), **keys}, seed, fixed=fixed or {})


def write_random_dflash(
    path: Path,
    target: Source,
    layers: Sequence[int],
    *,
    seed: int = 0,
    n_block: int = 8,
    n_layers: int = 2,
    n_vocab_draft: int | None = None,
    markov: bool = False,
    anchor: bool = True,
    causal: bool = False,
    n_candidates: int = 0,
) -> None:
    """A DFlash head that reads the rows of `layers` of `target` and fills blocks of `n_block` positions.

    `markov` adds the head that makes it a DSpark one; `anchor`: its block's first position already proposes.
    `n_candidates` adds the convolutions and the selector that make it a DFlash2 one.

    Raises: InputError when the file cannot be written.
    """
    width = _width(target)
    widths = _widths(target, len(layers), width, width, n_vocab_draft)
    tensors = [*read_tensors("fc.weight read width, enc.output_norm.weight width", widths)]
    tensors += _tables(widths, n_vocab_draft)
    if markov:
        tensors += read_tensors("markov_w1.weight rank vocab, markov_w2.weight rank draft", widths)
    block = f"{_BLOCK}, attn_q_norm.weight {_HEAD_DIM}, attn_k_norm.weight {_HEAD_DIM}"
    for layer in range(n_layers):
        tensors += read_tensors(f"{block}, {_CONVOLUTIONS}" if n_candidates else block, widths, f"blk.{layer}.")
    if n_candidates:
        names = "selector_predecessor.weight rank vocab, selector_successor.weight rank vocab"
        tensors += read_tensors(f"{names}, selector_hidden.weight width rank", widths)
    keys: dict[str, Any] = {"target_layers": list(layers), "block_size": n_block, "attention.causal": causal}
    if markov:
        keys["sample_from_anchor"] = anchor
    if n_candidates:
        keys |= {"selector_rank": _RANK, "selector_top_k": n_candidates}
        keys |= {"conv_kernel_size": _KERNEL, "conv_group_size": _GROUP}
    if target.is_array(f"{target.architecture}.rope.dimension_sections"):
        keys["rope.dimension_sections"] = [_HEAD_DIM // 2, 0, 0, 0]  # text moves along one axis of the target's
    _write(path, "dflash", target, tensors, {**_keys(width, n_layers), **keys}, seed, mask=_n_vocab(target) - 1)


def _widths(target: Source, n_read: int, width: int, n_input: int, n_vocab_draft: int | None) -> dict[str, int]:
    n_target, n_vocab = _width(target), _n_vocab(target)
    sizes = {"width": width, "target": n_target, "read": n_read * n_target, "input": n_input, "ff": 2 * width}
    tables = {"vocab": n_vocab, "draft": n_vocab_draft or n_vocab, "rank": _RANK}
    return {
        **sizes,
        **tables,
        "heads": _N_HEAD * _HEAD_DIM,
        "kernel": _KERNEL,
        "groups": 2 * _KERNEL * (width // _GROUP),
    }


def _tables(widths: dict[str, int], n_vocab_draft: int | None) -> Iterator[Tensor]:
    """Those that the head does not share with its target."""
    is_other = widths["width"] != widths["target"]
    lines = ["output_norm.weight width", *(["token_embd.weight width vocab"] if is_other else [])]
    lines += ["output.weight width draft"] if is_other or n_vocab_draft else []
    return read_tensors(",".join([*lines, *(["d2t draft"] if n_vocab_draft else [])]), widths)


def _keys(width: int, n_layers: int) -> dict[str, Any]:
    return {
        "block_count": n_layers,
        "context_length": 4096,
        "embedding_length": width,
        "feed_forward_length": 2 * width,
        "attention.head_count": _N_HEAD,
        "attention.head_count_kv": _N_HEAD,
        "attention.key_length": _HEAD_DIM,
        "attention.value_length": _HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": _HEAD_DIM,
        "rope.freq_base": 10_000.0,
    }


def _write(
    path: Path,
    architecture: str,
    target: Source,
    tensors: Sequence[Tensor],
    keys: dict[str, Any],
    seed: int,
    *,
    mask: int | None = None,
    fixed: Mapping[str, Floats] = MappingProxyType({}),
) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        add_keys(writer, architecture, keys, name=f"mlsd random {architecture}, seed {seed}", origin={"seed": seed})
        other = [key for key in target.values if not key.startswith("tokenizer.")]
        target.copy_metadata(writer, skip={*other, "tokenizer.ggml.mask_token_id"})
        if mask is not None:
            writer.add_mask_token_id(mask)

    def data(tensor: Tensor) -> list[npt.NDArray[Any]]:
        if tensor.name == "d2t":
            return [_map(tensor, seed, _n_vocab(target))]
        weights = fixed[tensor.name] if tensor.name in fixed else random_weights(tensor, seed)
        return [gguf.quants.quantize(weights, tensor.type)]

    write_gguf(path, architecture, [_stored(tensor) for tensor in tensors], describe, data)


def _stored(tensor: Tensor) -> Tensor:
    if tensor.name == "d2t":
        return Tensor(name=tensor.name, dims=tensor.dims, type=gguf.GGMLQuantizationType.I64)
    return tensor.stored_as(_Q8)


def _map(tensor: Tensor, seed: int, n_vocab: int) -> npt.NDArray[np.int64]:
    """Tokens of the target that a reduced vocabulary holds."""
    chosen = generator(seed, tensor.name).permutation(n_vocab)[: tensor.dims[0]]
    return np.sort(chosen).astype(np.int64)


def _width(target: Source) -> int:
    return int(target.count("embedding_length"))


def _n_vocab(target: Source) -> int:
    n_vocab = target.length("tokenizer.ggml.tokens")
    if not n_vocab:
        raise InputError(f"{target.path.name} has no vocabulary to make a head for.")
    return n_vocab

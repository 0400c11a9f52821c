"""Files of drafting heads (EAGLE-3, DFlash): what they say, and whether llama.cpp can run one beside a target.

The library checks little of it and ends the process on the rest, so everything its graphs take for granted is checked
here, from the two headers alone. Read from src/models/eagle3.cpp and src/models/dflash.cpp of the pinned release.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import gguf
import numpy as np

from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.tensor import Tensor
from mlsd.records import Record

_N_EAGLE_LAYERS = 3
_MARKOV, _SELECTOR = "markov_w1.weight", "selector_hidden.weight"  # what makes it a DSpark, a DFlash2 head
_MASK = "tokenizer.ggml.mask_token_id"
_DEFAULT_BLOCK = 16  # what llama.cpp's driver takes where the file has no block size


class DraftingHead(Record, frozen=True, kw_only=True):
    """What a drafting head reads, and how."""

    architecture: str
    target_layers: tuple[int, ...]  # whose input rows it reads; the number of trunk blocks: the row after the last
    n_block: int = 0  # dflash: positions of one block, the newest token included where the head repeats it
    mask: int = 0  # dflash: the token that stands for a position to be filled
    causal: bool = False  # dflash: whether a position of a block sees the earlier ones only
    from_anchor: bool = False  # dflash: whether the newest token's own position already gives a proposal
    n_candidates: int = 0  # dflash: tokens a position that a selector chooses among; 0: there is no selector

    @property
    def longest(self) -> int:
        return self.n_block if self.from_anchor else self.n_block - 1


def read_head(head: Source, target: Source, architecture: str) -> DraftingHead:
    """The head in a file, when it fits the target. Raises: UnsupportedError, ModelFileError."""
    head.require_whole()
    if head.architecture != architecture:
        raise UnsupportedError(
            f"{head.path.name} is a file of {head.architecture or 'nothing known'}, not a head for {architecture}.",
            hint="Give the head with --draft; llama.cpp's convert_hf_to_gguf.py makes one with --target-model-dir.",
        )
    tensors = {tensor.name: tensor for tensor in head.tensors}
    layers, listed = head.counts("target_layers") or (), head.is_array(f"{architecture}.target_layers")
    first = (not listed, "does not say which target layers it reads (target_layers)")
    for is_misfit, why in chain([first], (_of_eagle if architecture == "eagle3" else _of_block)(head, target, tensors)):
        if is_misfit:
            raise UnsupportedError(f"{head.path.name} {why}.", hint="Take a head that was made for this target.")
    if architecture == "eagle3":
        return DraftingHead(architecture=architecture, target_layers=layers)
    return DraftingHead(
        architecture=architecture,
        target_layers=layers,
        n_block=head.count("block_size", _DEFAULT_BLOCK),
        mask=head.count(_MASK, prefixed=False),
        causal=any(head.flags("attention.causal")),
        from_anchor=_MARKOV in tensors and all(head.flags("sample_from_anchor")),
        n_candidates=_number(head, "selector_top_k") if _SELECTOR in tensors else 0,
    )


# Each gives what may be amiss, and the words for it, in order: what comes later may rest on what holds before.
Misfits = Iterator[tuple[bool, str]]


def _of_eagle(head: Source, target: Source, tensors: Mapping[str, Tensor]) -> Misfits:
    width, n_target = _number(head, "target_hidden_size"), _number(target, "embedding_length")
    yield width != n_target, f"reads target rows of {width} numbers; this target's have {n_target}"
    n_layers, n_blocks = len(head.counts("target_layers") or ()), _number(head, "block_count")
    few = f"llama.cpp runs heads that read {_N_EAGLE_LAYERS}"
    yield n_layers != _N_EAGLE_LAYERS, f"reads {n_layers} target layers; {few}"
    yield n_blocks != 1, f"has {n_blocks} blocks; llama.cpp runs heads with one"
    yield from _of_tensors(head, target, tensors)


def _of_block(head: Source, target: Source, tensors: Mapping[str, Tensor]) -> Misfits:
    n_embd, n_target = _number(head, "embedding_length"), _number(target, "embedding_length")
    yield n_embd != n_target, f"is {n_embd} wide and the target {n_target}; llama.cpp wants them equal"
    yield head.count("hyper_connection_count") > 0, "is of the DeepSeek-V4 kind, which mlsd does not drive"
    has_markov, ends = _MARKOV in tensors, "llama.cpp ends the process on such a file"
    both = "has a selector and a Markov head; llama.cpp's driver knows no such file"
    yield has_markov and _SELECTOR in tensors, both
    yield has_markov and not _number(head, "block_size"), f"has a Markov head and no block_size; {ends}"
    unused = head.count("attention.sliding_window") > 0 and not any(head.flags("attention.sliding_window_pattern"))
    yield unused, f"has a sliding window that no block uses; {ends}"
    yield from _of_tensors(head, target, tensors)
    mask, n_block = head.count(_MASK, None, prefixed=False), head.count("block_size", _DEFAULT_BLOCK)
    yield mask is None or mask >= _n_vocab(head), f"names no mask token ({_MASK})"
    yield n_block < 2, f"has blocks of {n_block} positions, which leave nothing to propose"


def _of_tensors(head: Source, target: Source, tensors: Mapping[str, Tensor]) -> Misfits:
    n_embd, n_target = _number(head, "embedding_length"), _number(target, "embedding_length")
    n_vocab, n_vocab_target = _n_vocab(head), _n_vocab(target)
    yield n_vocab != n_vocab_target, f"has a vocabulary of {n_vocab} tokens, the target one of {n_vocab_target}"
    usual = n_embd // max(1, _number(head, "attention.head_count"))
    keys, values = (_number(head, f"attention.{name}_length") or usual for name in ("key", "value"))
    yield keys != values, f"has keys of {keys} numbers and values of {values}; llama.cpp's graph wants them equal"
    table, output, mapped = (tensors.get(name) for name in ("token_embd.weight", "output.weight", "d2t"))
    shares_output = output is None and (head.architecture == "eagle3" or table is None)
    shares = n_embd != n_target and (table is None or shares_output)
    yield shares, f"uses the target's tables, but is {n_embd} wide and the target {n_target}"
    if table is not None:
        wanted = (n_embd, n_vocab)
        yield table.dims != wanted, f"has an embedding table of {table.dims}, not of {wanted}"
    if mapped is not None:  # from draft tokens to the target's: an entry for each output row
        no_i64 = mapped.type != gguf.GGMLQuantizationType.I64
        yield no_i64, f"stores its token map (d2t) as {mapped.type.name}; llama.cpp wants I64"
        tokens = head.data("d2t").view(np.int64)
        short = f"maps {len(tokens)} tokens (d2t), but the target's output has {n_vocab} rows"
        yield len(tokens) != n_vocab and shares_output, short
        is_bad = tokens.min() < 0 or tokens.max() >= n_vocab or len(np.unique(tokens)) != len(tokens)
        yield bool(is_bad), "maps tokens (d2t) out of the vocabulary, or two to one"


def _n_vocab(source: Source) -> int:
    return source.length("tokenizer.ggml.tokens") or source.count("vocab_size")


def _number(source: Source, key: str) -> int:
    """A count; 0 where there is none, or one for each block."""
    counts = source.counts(key) or (0,)
    return 0 if source.is_array(f"{source.architecture}.{key}") else counts[0]

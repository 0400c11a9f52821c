"""Files of drafting heads (EAGLE-3, DFlash): what they say, and whether llama.cpp can run one beside a target.

The library checks little of it and ends the process on the rest, so everything its graphs take for granted is checked
here, from the two headers alone. Read from src/models/eagle3.cpp and src/models/dflash.cpp of the pinned release.
"""

import gguf
import numpy as np

from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.tensor import Tensor
from mlsd.records import Record

_N_EAGLE_LAYERS = 3
_MARKOV, _SELECTOR = "markov_w1.weight", "selector_hidden.weight"  # what makes it a DSpark, a DFlash2 head
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
    layers = _layers(head)
    if architecture == "eagle3":
        _check_eagle(head, target, layers)
        _check_tensors(head, target)
        return DraftingHead(architecture=architecture, target_layers=layers)
    _check_block(head, target)
    _check_tensors(head, target)
    return _block_head(head, layers)


def _layers(head: Source) -> tuple[int, ...]:
    layers = head.counts("target_layers")
    if layers is None or not head.is_array(f"{head.architecture}.target_layers"):
        raise _unfit(head, "does not say which target layers it reads (target_layers)")
    return layers


def _check_tensors(head: Source, target: Source) -> None:
    tensors = {tensor.name: tensor for tensor in head.tensors}
    n_embd, n_target = _number(head, "embedding_length"), _number(target, "embedding_length")
    n_vocab, n_vocab_target = _n_vocab(head), _n_vocab(target)
    if n_vocab != n_vocab_target:
        raise _unfit(head, f"has a vocabulary of {n_vocab} tokens, the target one of {n_vocab_target}")
    usual = n_embd // max(1, _number(head, "attention.head_count"))
    keys, values = (_number(head, f"attention.{name}_length") or usual for name in ("key", "value"))
    if keys != values:
        raise _unfit(head, f"has keys of {keys} numbers and values of {values}; llama.cpp's graph wants them equal")
    table, output, mapped = (tensors.get(name) for name in ("token_embd.weight", "output.weight", "d2t"))
    shares_output = output is None and (head.architecture == "eagle3" or table is None)
    if n_embd != n_target and (table is None or shares_output):
        raise _unfit(head, f"uses the target's tables, but is {n_embd} wide and the target {n_target}")
    if table is not None and table.dims != (n_embd, n_vocab):
        raise _unfit(head, f"has an embedding table of {table.dims}, not of {(n_embd, n_vocab)}")
    if mapped is not None:
        _check_map(head, mapped, n_vocab, shares_output=shares_output)


def _check_map(head: Source, mapped: Tensor, n_vocab: int, *, shares_output: bool) -> None:
    """The map from draft tokens to target tokens: 64-bit, one entry an output row, each a token and none twice."""
    if mapped.type != gguf.GGMLQuantizationType.I64:
        raise _unfit(head, f"stores its token map (d2t) as {mapped.type.name}; llama.cpp wants I64")
    tokens = head.data("d2t").view(np.int64)
    if len(tokens) != n_vocab and shares_output:
        raise _unfit(head, f"maps {len(tokens)} tokens (d2t), but the target's output has {n_vocab} rows")
    if tokens.min() < 0 or tokens.max() >= n_vocab or len(np.unique(tokens)) != len(tokens):
        raise _unfit(head, "maps tokens (d2t) out of the vocabulary, or two to one")


def _check_eagle(head: Source, target: Source, layers: tuple[int, ...]) -> None:
    n_target = _number(target, "embedding_length")
    width = _number(head, "target_hidden_size")
    if width != n_target:
        raise _unfit(head, f"reads target rows of {width} numbers; this target's have {n_target}")
    if len(layers) != _N_EAGLE_LAYERS:
        raise _unfit(head, f"reads {len(layers)} target layers; llama.cpp runs heads that read {_N_EAGLE_LAYERS}")
    if _number(head, "block_count") != 1:
        raise _unfit(head, f"has {_number(head, 'block_count')} blocks; llama.cpp runs heads with one")


def _check_block(head: Source, target: Source) -> None:
    n_embd, n_target = _number(head, "embedding_length"), _number(target, "embedding_length")
    if n_embd != n_target:
        raise _unfit(head, f"is {n_embd} wide and the target {n_target}; llama.cpp wants them equal")
    names = {tensor.name for tensor in head.tensors}
    if head.count("hyper_connection_count"):
        raise _unfit(head, "is of the DeepSeek-V4 kind, which mlsd does not drive")
    if _SELECTOR in names and _MARKOV in names:
        raise _unfit(head, "has a selector and a Markov head; llama.cpp's driver knows no such file")
    if _MARKOV in names and not _number(head, "block_size"):
        raise _unfit(head, "has a Markov head and no block_size; llama.cpp ends the process on such a file")
    if head.count("attention.sliding_window") and not any(head.flags("attention.sliding_window_pattern")):
        raise _unfit(head, "has a sliding window that no block uses; llama.cpp ends the process on such a file")


def _block_head(head: Source, layers: tuple[int, ...]) -> DraftingHead:
    mask = head.count("tokenizer.ggml.mask_token_id", None, own=False)
    if mask is None or mask >= _n_vocab(head):
        raise _unfit(head, "names no mask token (tokenizer.ggml.mask_token_id)")
    n_block = head.count("block_size", _DEFAULT_BLOCK)
    if n_block < 2:
        raise _unfit(head, f"has blocks of {n_block} positions, which leave nothing to propose")
    names = {tensor.name for tensor in head.tensors}
    return DraftingHead(
        architecture=head.architecture,
        target_layers=layers,
        n_block=n_block,
        mask=mask,
        causal=any(head.flags("attention.causal")),
        from_anchor=_MARKOV in names and all(head.flags("sample_from_anchor")),
        n_candidates=_number(head, "selector_top_k") if _SELECTOR in names else 0,
    )


def _n_vocab(source: Source) -> int:
    return source.length("tokenizer.ggml.tokens") or source.count("vocab_size")


def _number(source: Source, key: str) -> int:
    """A count; 0 where there is none, or one for each block."""
    found = source.counts(key) or (0,)
    return 0 if source.is_array(f"{source.architecture}.{key}") else found[0]


def _unfit(head: Source, why: str) -> UnsupportedError:
    return UnsupportedError(f"{head.path.name} {why}.", hint="Take a head that was made for this target.")

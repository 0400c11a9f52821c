"""What a GGUF file holds, as a record: shape, weights and bytes a token reads, tensor types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlsd.gguf_tools.shape import SYNTHETIC
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.tensor import Tensor
from mlsd.hashes import file_sha256
from mlsd.records import ModelFacts, ModelRef, Record

_EMBEDDING = "token_embd.weight"
_HEAD = "output.weight"
# Tables of which one token reads a single row, which is too little to count.
_LOOKUP_TABLES = (_EMBEDDING, "per_layer_token_embd.weight")
_EXPERT_MARK = "_exps."


class Weight(Record, frozen=True, kw_only=True):
    """Parameters and bytes of some tensors."""

    n_parameters: int = 0
    n_bytes: int = 0

    def __add__(self, other: Weight) -> Weight:
        return Weight(n_parameters=self.n_parameters + other.n_parameters, n_bytes=self.n_bytes + other.n_bytes)

    def fraction(self, numerator: int, denominator: int) -> Weight:
        """That share of it; exact for experts, which are all the same."""
        return Weight(
            n_parameters=self.n_parameters * numerator // denominator, n_bytes=self.n_bytes * numerator // denominator
        )


class ModelWeight(Record, frozen=True, kw_only=True):
    """Where the weights of a model are. One token reads `always` and K of the E routed experts of every layer."""

    total: Weight  # every tensor of the file
    always: Weight  # read for every token, whatever the router chooses; the LM head included
    routed: Weight  # all routed experts of all layers
    expert: Weight  # one routed expert of one layer (the mean, where layers differ); zero without experts
    lookup: Weight  # tables of which a token reads one row; zero when the embedding is also the LM head
    prediction: Weight  # multi-token-prediction blocks, which plain decoding does not read
    n_experts: int = 0
    n_experts_used: int = 0
    n_expert_layers: int = 0

    @property
    def active(self) -> Weight:
        """What one token reads: ``always + routed * K / E``."""
        if not self.n_experts:
            return self.always
        return self.always + self.routed.fraction(self.n_experts_used, self.n_experts)

    def facts(self) -> dict[str, Any]:
        """Its part of `records.ModelFacts`."""
        return {
            "n_experts": self.n_experts or None,
            "n_experts_used": self.n_experts_used or None,
            "n_parameters": self.total.n_parameters,
            "n_parameters_active": self.active.n_parameters,
            "weight_bytes": self.total.n_bytes,
            "active_bytes": self.active.n_bytes,
        }


def weigh(
    tensors: Iterable[Tensor], *, n_trunk: int | None = None, n_experts: int = 0, n_experts_used: int = 0
) -> ModelWeight:
    """Sort the tensors by how often a token reads them; blocks from `n_trunk` on are prediction blocks."""
    listed = list(tensors)
    tied = all(tensor.name != _HEAD for tensor in listed)
    sums = dict.fromkeys(("always", "routed", "lookup", "prediction"), Weight())
    expert_layers = set()
    for tensor in listed:
        block = tensor.block
        if n_trunk is not None and block is not None and block >= n_trunk:
            use = "prediction"
        elif n_experts and _EXPERT_MARK in tensor.name:
            use = "routed"
            expert_layers.add(block)
        elif tensor.name in _LOOKUP_TABLES and not (tied and tensor.name == _EMBEDDING):
            use = "lookup"
        else:
            use = "always"
        sums[use] += Weight(n_parameters=tensor.n_weights, n_bytes=tensor.n_bytes)
    n_routed = n_experts * len(expert_layers)
    return ModelWeight(
        total=sum(sums.values(), Weight()),
        expert=sums["routed"].fraction(1, n_routed) if n_routed else Weight(),
        n_experts=n_experts,
        n_experts_used=n_experts_used,
        n_expert_layers=len(expert_layers),
        **sums,
    )


def model_facts(path: Path, *, ref: ModelRef | None = None) -> ModelFacts:
    """Read the metadata and the tensor list of `path` (of a split model the first file); no weight is loaded.

    Without `ref` the file is hashed. Active counts leave out multi-token-prediction blocks and an embedding table that
    is not the LM head. Raises: ModelFileError.
    """
    source = Source(path)
    stored = [tensor for shard in source.shards() for tensor in shard.tensors]
    weight = source_weight(source, stored)
    if ref is None:
        ref = ModelRef(id=path.stem, sha256=file_sha256(path), n_bytes=path.stat().st_size)
    tokens = source.length("tokenizer.ggml.tokens")
    return ModelFacts(
        ref=ref,
        architecture=source.architecture,
        name=source.text("general.name", "", prefixed=False) or None,
        n_layers=trunk_layers(source),
        n_vocab=tokens if tokens is not None else source.count("vocab_size", None),
        n_embd=source.count("embedding_length", None),
        **weight.facts(),
        tensor_types=dict(Counter(tensor.type.name for tensor in stored).most_common()),
        synthetic=any(source.flags(SYNTHETIC, prefixed=False)),
    )


def source_weight(source: Source, stored: list[Tensor] | None = None) -> ModelWeight:
    """The weights of an opened file (`stored`: of all files of its model), sorted by how often a token reads them."""
    return weigh(
        source.tensors if stored is None else stored,
        n_trunk=trunk_layers(source),
        n_experts=source.count("expert_count"),
        # Some architectures store one count a layer; where layers differ the largest is an upper bound.
        n_experts_used=max(source.counts("expert_used_count") or (0,)),
    )


def trunk_layers(source: Source) -> int | None:
    """Blocks of the trunk, multi-token-prediction blocks excluded; None when the file does not say."""
    blocks, predicting = source.n_blocks, source.count("nextn_predict_layers")
    if blocks is not None and predicting > blocks:
        raise source.damaged(f"{predicting} of its {blocks} blocks are for prediction")
    return None if blocks is None else blocks - predicting

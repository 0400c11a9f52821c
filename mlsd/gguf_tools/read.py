"""What a GGUF file holds, as a record: shape, weights and bytes a token reads, tensor types."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mlsd.gguf_tools.shape import SYNTHETIC
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.tensor import Tensor
from mlsd.gguf_tools.weigh import ModelWeight, weigh
from mlsd.hashes import file_sha256
from mlsd.records import ModelFacts, ModelRef


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
        name=source.text("general.name", "", own=False) or None,
        n_layers=trunk_layers(source),
        n_vocab=tokens if tokens is not None else source.count("vocab_size", None),
        n_embd=source.count("embedding_length", None),
        **weight.facts(),
        tensor_types=dict(Counter(tensor.type.name for tensor in stored).most_common()),
        synthetic=any(source.flags(SYNTHETIC, own=False)),
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

"""What a context costs: the attention memory of its positions, from a model's header."""

from __future__ import annotations

from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers

_F16_BYTES = 2  # llama.cpp keeps keys and values as f16 unless told otherwise


def trained_context(source: Source) -> int | None:
    """Positions the model was trained for; None when the file does not say."""
    trained = source.own("context_length")
    return None if trained is None else int(trained)


def context_bytes(source: Source, n_ctx: int) -> int | None:
    """Keys and values of `n_ctx` positions: ``n_ctx * sum over attention layers of n_head_kv * (d_k + d_v) * 2``.

    Recurrent states do not grow with the context and are left out. None when the file does not say enough.
    """
    heads = source.own("attention.head_count_kv", source.own("attention.head_count"))
    n_head, n_embd = source.own("attention.head_count"), source.own("embedding_length")
    if heads is None or n_head is None or n_embd is None:
        return None
    layers = attention_layers(source)
    counts = [int(heads[layer]) for layer in layers] if isinstance(heads, list) else [int(heads)] * len(layers)
    width = int(n_embd) // int(max(n_head) if isinstance(n_head, list) else n_head)
    per_head = int(source.own("attention.key_length", width)) + int(source.own("attention.value_length", width))
    return n_ctx * sum(counts) * per_head * _F16_BYTES

"""Refusing a context that cannot be, before a worker loads anything: llama.cpp would try, and be killed for it."""

from __future__ import annotations

from pathlib import Path

import psutil

from mlsd.errors import InputError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers
from mlsd.measure.messages import InfoJob, Job, LayerSearchJob, ModelFile, PerplexityJob, ProbeJob, SelfCheckJob, Work
from mlsd.units import format_bytes

_F16_BYTES = 2  # llama.cpp keeps keys and values as f16 unless told otherwise


def check_contexts(work: Work) -> None:
    """Check the context that a user asked for; one that mlsd chooses is as long as the run needs.

    Raises: InputError when it is longer than the target was trained for, or than this machine's memory holds.
    """
    n_ctx, files = _wanted(work)
    if n_ctx is None:
        return
    target = Source(Path(files[0].path))
    trained = trained_context(target)
    if trained is not None and n_ctx > trained:
        raise InputError(
            f"A context of {n_ctx:,} positions is beyond the {trained:,} that {files[0].ref.id} was trained for.",
            hint=f"Give --n-ctx {trained} or less; without it a context is as long as the run needs.",
        )
    memory = psutil.virtual_memory().total
    needed = sum(context_bytes(Source(Path(file.path)), n_ctx) or 0 for file in files)
    if needed > memory:
        raise InputError(
            f"A context of {n_ctx:,} positions needs {format_bytes(needed)}; this machine has {format_bytes(memory)}.",
            hint="Give a smaller --n-ctx; without it a context is as long as the run needs.",
        )


def _wanted(work: Work) -> tuple[int | None, list[ModelFile]]:
    """The context that was asked for, and the models that would get one, the target first."""
    if isinstance(work, Job):
        return (work.slots[0].case.engine.n_ctx if work.slots else None), [work.target, *work.models]
    if isinstance(work, InfoJob | SelfCheckJob):
        return None, []
    if isinstance(work, ProbeJob | LayerSearchJob):
        return work.engine.n_ctx, [work.model]
    n_ctx = work.n_window if isinstance(work, PerplexityJob) else work.engine.n_ctx
    return n_ctx, [work.target, *([work.draft] if work.draft is not None else [])]


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

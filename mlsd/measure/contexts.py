"""Refusing a context that cannot be, before a worker loads anything: llama.cpp would try, and be killed for it."""

from __future__ import annotations

from pathlib import Path

from mlsd.errors import InputError
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers
from mlsd.hardware.budget import host_budget
from mlsd.measure.messages import Work, models_of
from mlsd.planning.job import Job, ModelFile
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
    trained = target.count("context_length", None)
    if trained is not None and n_ctx > trained:
        raise InputError(
            f"A context of {n_ctx:,} positions is beyond the {trained:,} that {files[0].ref.id} was trained for.",
            hint=f"Give --n-ctx {trained} or less; without it a context is as long as the run needs.",
        )
    memory = host_budget().most_bytes
    needed = sum(context_bytes(Source(Path(file.path)), n_ctx) or 0 for file in files)
    if needed > memory:
        raise InputError(
            f"A context of {n_ctx:,} positions needs {format_bytes(needed)}; this machine has {format_bytes(memory)}.",
            hint="Give a smaller --n-ctx; without it a context is as long as the run needs.",
        )


def _wanted(work: Work) -> tuple[int | None, list[ModelFile]]:
    """The context that was asked for, and the models that would get one, the target first."""
    work = getattr(work, "job", None) or work
    if isinstance(work, Job):
        return (work.slots[0].case.engine.n_ctx if work.slots else None), list(work.files)
    engine, files = getattr(work, "engine", None), list(models_of(work))
    if engine is None or not files:
        return None, []
    return engine.n_ctx, files


def context_bytes(source: Source, n_ctx: int) -> int | None:
    """Keys and values of `n_ctx` positions: ``n_ctx * sum over attention layers of n_head_kv * (d_k + d_v) * 2``.

    Multi-head latent attention reads its values out of its keys. None when the file does not say enough.
    """
    n_layers = trunk_layers(source)
    n_head, n_embd = source.counts("attention.head_count"), source.count("embedding_length", None)
    if n_head is None or n_embd is None or n_layers is None:
        return None
    key = "attention.head_count_kv"
    heads = source.of_blocks(key if source.counts(key) else "attention.head_count", n_layers) or ()
    width = n_embd // max(1, *n_head)
    is_latent = source.count("attention.key_length_mla") and source.count("attention.value_length_mla")
    value = 0 if is_latent else source.count("attention.value_length", width)
    per_head = source.count("attention.key_length", width) + value
    return n_ctx * sum(heads[layer] for layer in attention_layers(source)) * per_head * _F16_BYTES

"""How well a model predicts a text, and how far a draft's predictions lie from its target's on the same text."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import exp, sqrt
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.engine.context import check_finite, context_options
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.errors import InputError
from mlsd.measure.messages import DistanceJob
from mlsd.measure.probe_cache import open_reporting
from mlsd.planning.prompts import text_sha256
from mlsd.store.rows import DraftDistance

_ROWS = 32  # positions whose whole distributions are in memory at once
_WINDOW = 512  # tokens, where nothing else is asked for
_LEAST_WINDOW = 2  # a token, and the one behind it that is predicted
_Z95 = 1.96

Floats = npt.NDArray[np.float64]


def log_softmax(logits: npt.NDArray[np.float32]) -> Floats:
    """Natural logarithms of the distributions, shape as given: (rows, n_vocab)."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def total_variation(log_p: Floats, log_q: Floats) -> Floats:
    """Half the sum of |p - q|, a row each.

    One minus it is the chance that a token drawn from q survives rejection sampling against p (Leviathan et al. 2023,
    arXiv 2211.17192, corollary 3.6). Vocabularies may differ in padding; what one lacks it gives probability 0.
    """
    n = min(log_p.shape[1], log_q.shape[1])
    shared = np.abs(np.exp(log_p[:, :n]) - np.exp(log_q[:, :n])).sum(axis=1)
    rest = np.exp(log_p[:, n:]).sum(axis=1) + np.exp(log_q[:, n:]).sum(axis=1)
    distances: Floats = 0.5 * (shared + rest)
    return distances


def measure_distance(job: DistanceJob) -> DraftDistance:
    """Both models over the text in windows that each start afresh; every token but a window's first counts.

    Raises: InputError for a text or a context too short, EngineError for a draft of another tokenizer.
    """
    n_window = job.engine.n_ctx or _WINDOW
    if n_window < _LEAST_WINDOW:
        raise InputError("--n-ctx 1 leaves no token to predict.", hint=f"Give at least {_LEAST_WINDOW} positions.")
    with ExitStack() as stack:
        options = msgspec.structs.replace(
            context_options(job.engine, n_window), max_outputs=_ROWS, device_sampling=False
        )
        contexts: list[LlamaContext] = []
        for file in (job.target, job.draft):
            model = stack.enter_context(LlamaModel(Path(file.path), n_gpu_layers=job.engine.n_gpu_layers))
            contexts.append(stack.enter_context(open_reporting("reading the text", model, options)))
        check_vocabularies(contexts[0].tokenizer, contexts[1].tokenizer)
        tokens = contexts[0].tokenizer.tokenize(job.text)[: job.n_tokens]
        if len(tokens) < 2:
            raise InputError("The text has fewer than two tokens.", hint="Give a longer one with --text.")
        windows = (tokens[start : start + n_window] for start in range(0, len(tokens), n_window))
        parts = [part for window in windows for part in _window(contexts, window)]
    target, draft, distance, agrees = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    ratio, reach = float((draft - target).mean()), _Z95 * _error(draft - target)
    return DraftDistance(
        target_key=job.target.ref.key,
        drafting_key=job.drafting_key,
        text_sha256=text_sha256(job.text),
        n_tokens=len(target),
        perplexity=exp(target.mean()),
        draft_perplexity=exp(draft.mean()),
        ratio=exp(ratio),
        ratio_low=exp(ratio - reach),
        ratio_high=exp(ratio + reach),
        total_variation=float(distance.mean()),
        total_variation_error=_error(distance),
        agreement=float(agrees.mean()),
    )


def _window(contexts: Sequence[LlamaContext], tokens: Sequence[int]) -> Iterator[tuple[Floats, ...]]:
    """Of some positions at a time: surprise in nats of target and draft, distance, and 1 where both choose the same."""
    for context in contexts:
        context.clear()
    for start in range(0, len(tokens) - 1, _ROWS):
        inputs = tokens[start : start + _ROWS][: len(tokens) - 1 - start]
        following = np.array(tokens[start + 1 : start + 1 + len(inputs)])
        rows = []
        for context in contexts:
            context.decode(inputs, n_outputs=len(inputs))
            rows.append(log_softmax(check_finite(context.logits())))
        target, draft = (-row[np.arange(len(inputs)), following] for row in rows)
        agrees = rows[0].argmax(axis=1) == rows[1].argmax(axis=1)
        yield target, draft, total_variation(*rows), agrees.astype(np.float64)


def _error(values: Floats) -> float:
    """Standard error of the mean; neighbouring tokens are taken as independent, so it is a lower bound."""
    return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else float("inf")

"""Which blocks a model drafts best without: two searches, both on the model itself with blocks bridged in place.

    greedy      leaves out one block after another, each time the one whose loss changes the fewest of the model's own
                greedy tokens; a few candidates are tried each time, the best of the step before first
    conflayers  leaves out blocks that say little with confidence (`conf_layers`), and keeps the set accepted most

What a set gets accepted is then measured with real rounds on a part of the text that was not searched on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.drafters.in_place import InPlaceDraft
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama import LlamaModel
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import SessionOptions
from mlsd.engine.taps import CollectTap, SkipTap, TappedSession
from mlsd.errors import InputError, UnsupportedError
from mlsd.gguf_tools.cut import state_layers, uniform_skip
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.measure.conf_layers import module_confidence, select
from mlsd.measure.job import LayerSearchJob, LayersFound
from mlsd.measure.perplexity import log_softmax
from mlsd.measure.rig import session_options
from mlsd.records import Sampling

_TRIED_A_STEP = 4
_LEAST_PROMPT = 8
_CONF_WINDOW = 32  # tokens whose activations decide (ConfLayers: context_window)
_CONF_INTERVAL = 25  # tokens between two choices (ConfLayers: search_interval)
_CONF_CHOICES = 8

Score = tuple[float, float]  # share of tokens kept, and their mean log-probability, which breaks ties


def search_layers(job: LayerSearchJob) -> LayersFound:
    """Run the search of the job.

    Raises: InputError for a text too short or a share that leaves nothing, UnsupportedError for a recurrent model
    (its memory cannot be cut back after each candidate) and for conflayers on other block names.
    """
    source = Source(Path(job.model.path))
    n_layers = trunk_layers(source) or 0
    uniform = uniform_skip(n_layers, job.fraction)
    if not uniform:
        raise InputError(f"{job.fraction:g} of {n_layers} blocks is less than one block.", hint="Give a larger share.")
    if state_layers(source):
        raise UnsupportedError(
            f"{source.path.name} has recurrent blocks; blocks to leave out are only searched for in attention models.",
            hint="Name blocks with --skip, or take --fraction alone.",
        )
    with LlamaModel(Path(job.model.path), n_gpu_layers=job.engine.n_gpu_layers) as model:
        tokens = model.tokenize(job.text)
        n_prompt = len(tokens) // 2
        if n_prompt < _LEAST_PROMPT:
            raise InputError(f"The text has only {len(tokens)} tokens.", hint=f"Give {2 * _LEAST_PROMPT} or more.")
        options = session_options(job.engine, n_prompt + 2 * job.n_tokens + 16)
        with _open(model, options, job) as session:
            lab = _Lab(session, job, n_layers)
            lab.read(tokens[:n_prompt])
            started_ns = time.perf_counter_ns()
            found = lab.greedy(len(uniform)) if job.method == "greedy" else lab.conflayers()
            search_ns = time.perf_counter_ns() - started_ns
            fresh = tokens[n_prompt:]
            as_many = uniform if len(uniform) == len(found) else uniform_skip(n_layers, len(found) / n_layers)
            return LayersFound(
                skipped=found,
                acceptance_rate=lab.acceptance(found, fresh, job.n_tokens),
                uniform=as_many,
                uniform_acceptance_rate=lab.acceptance(as_many, fresh, job.n_tokens),
                n_candidates=lab.n_candidates,
                search_ns=search_ns,
            )


def _open(model: LlamaModel, options: SessionOptions, job: LayerSearchJob) -> TappedSession:
    wide = msgspec.structs.replace(
        options, tapped=True, device_sampling=False, max_outputs=max(job.n_tokens, job.gamma + 1)
    )
    session = model.session(wide)
    assert isinstance(session, TappedSession)
    return session


class _Lab:
    """A text, the model's own continuation of it, and sets of blocks tried on both."""

    def __init__(self, session: TappedSession, job: LayerSearchJob, n_layers: int) -> None:
        self._session, self._job, self._n_layers = session, job, n_layers
        self._prompt: tuple[int, ...] = ()
        self._output: tuple[int, ...] = ()
        self.n_candidates = 0

    def read(self, prompt: tuple[int, ...]) -> None:
        """Take in a text and continue it greedily; the continuation is what a draft would have to predict."""
        session = self._session
        limits = GenerationLimits(n_predict=self._job.n_tokens)
        rollback = make_rollback("trim", session)
        self._prompt = prompt
        self._output = generate(session, NoDrafter(), rollback, prompt, limits, MonotonicClock()).tokens
        session.truncate(len(prompt))

    def score(self, skipped: Iterable[int]) -> Score:
        """How many of the continuation's tokens the draft without `skipped` would choose after the true ones before.

        The prompt's memory is the model's own, the continuation's the draft's.
        """
        session, output = self._session, self._output
        self.n_candidates += 1
        with session.tapped(SkipTap(tuple(skipped))):
            session.decode(output[:-1], n_outputs=len(output) - 1)
        rows = log_softmax(session.logits())
        session.truncate(len(self._prompt))
        wanted = np.array(output[1:])
        return float((rows.argmax(axis=1) == wanted).mean()), float(rows[np.arange(len(wanted)), wanted].mean())

    def greedy(self, n_skip: int) -> tuple[int, ...]:
        """`n_skip` blocks, left out one after another."""
        scores = {layer: self.score((layer,)) for layer in range(1, self._n_layers - 1)}
        chosen: list[int] = [max(scores, key=lambda layer: scores[layer])]
        while len(chosen) < n_skip:
            del scores[chosen[-1]]
            promising = sorted(scores, key=lambda layer: scores[layer], reverse=True)[:_TRIED_A_STEP]
            scores.update({layer: self.score((*chosen, layer)) for layer in promising})
            chosen.append(max(promising, key=lambda layer: scores[layer]))
        return tuple(sorted(chosen))

    def conflayers(self) -> tuple[int, ...]:
        """The set accepted most of those that confidence chooses along the continuation."""
        text = (*self._prompt, *self._output)
        first = len(self._prompt)
        best: tuple[float, tuple[int, ...]] = (-1.0, uniform_skip(self._n_layers, self._job.fraction))
        for i in range(_CONF_CHOICES):
            end = first + i * _CONF_INTERVAL
            if end > len(text):
                break
            skipped = select(self._confidence(text[max(0, end - _CONF_WINDOW) : end]), self._job.fraction)
            if skipped:
                best = max(best, (self.acceptance(skipped, text[:end], _CONF_INTERVAL), skipped))
        return best[1]

    def _confidence(self, tokens: tuple[int, ...]) -> list[float]:
        """Confidence of each block's attention and feed-forward output, summed."""
        session = self._session
        names = {kind: [f"{kind}-{layer}" for layer in range(self._n_layers)] for kind in ("attn_out", "ffn_out")}
        tap = CollectTap([*names["attn_out"], *names["ffn_out"]], session.n_embd)
        session.clear()
        with session.tapped(tap):
            session.decode(tokens, n_outputs=1)
        missing = [name for kind in names.values() for name in kind if name not in tap.values]
        if missing:
            raise UnsupportedError(
                f"The graph of this architecture has no tensor {missing[0]}.", hint="Search with greedy instead."
            )
        confidence = {name: module_confidence(values) for name, values in tap.values.items()}
        return [confidence[a] + confidence[f] for a, f in zip(names["attn_out"], names["ffn_out"], strict=True)]

    def acceptance(self, skipped: tuple[int, ...], prompt: tuple[int, ...], n_predict: int) -> float:
        """Accepted / proposed over real rounds after `prompt`, the draft reading the model's own memory."""
        session = self._session
        self.n_candidates += 1
        drafter = InPlaceDraft(session, SkipTap(skipped), recurrent=False, sampling=Sampling())
        limits = GenerationLimits(n_predict=n_predict, gamma=self._job.gamma)
        result = generate(session, drafter, make_rollback("trim", session), prompt, limits, MonotonicClock())
        proposed = sum(r.proposed for r in result.rounds)
        return sum(r.accepted for r in result.rounds) / proposed if proposed else 0.0

"""Which blocks a model drafts best without, tried on the model itself with blocks bridged in place.

`greedy` leaves out one block after another, each time the one whose loss changes the fewest greedy tokens. `conflayers`
leaves out blocks with little confidence (arXiv 2604.14612 and its code). What is found stands against as many blocks
spread evenly, on a part of the text that was not searched on.
"""

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from math import log
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.clock import MonotonicClock
from mlsd.drafters.chain import Chain
from mlsd.engine.context import context_options
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.taps import ReadTap, SkipTap, Tap, TappedContext
from mlsd.engine.rollback import make_rollback
from mlsd.engine.verify import Proposal, Verification
from mlsd.errors import InputError, UnsupportedError
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers, state_layers, uniform_skip
from mlsd.measure.messages import LayersFound, report_progress
from mlsd.measure.worker.perplexity import log_softmax
from mlsd.planning.job import ModelFile
from mlsd.records import EngineOptions
from mlsd.trials.rates import sums

_TRIED_A_STEP = 4
_GAMMA = 2  # of the rounds that measure what is accepted
_LEAST_PROMPT = 8
_MOST_PROMPT = 512  # tokens before the continuation that decides; a longer text changes little and costs much
_CONF_WINDOW = 32  # tokens whose activations decide (ConfLayers: context_window)
_CONF_INTERVAL = 25  # tokens between two choices (ConfLayers: search_interval)
_CONF_CHOICES = 8
_CONF_STEP = 0.05
_CONF_SLACK = 0.25  # the share left out may exceed the one asked for by this much
_CONF_MOST_STEPS = 400

Score = tuple[float, float]  # share of tokens kept, and their mean log-probability, which breaks ties


def search_layers(
    model: ModelFile,
    engine: EngineOptions,
    text: str,
    method: Literal["greedy", "conflayers"],
    fraction: float,
    n_tokens: int = 96,
) -> LayersFound:
    """Look for the blocks that a model drafts best without, on its own continuation of a text.

    `fraction` is the share of blocks to leave out (conflayers may leave out a quarter of all more), `n_tokens` the
    length of the continuation that decides.

    Raises: InputError for a text too short or a share that leaves nothing, UnsupportedError for conflayers on an
    architecture whose blocks' outputs have other names.
    """
    source = Source(Path(model.path))
    n_layers = trunk_layers(source) or 0
    uniform = uniform_skip(n_layers, fraction)
    if not uniform:
        raise InputError(f"{fraction:g} of {n_layers} blocks is less than one block.", hint="Give a larger share.")
    with LlamaModel(Path(model.path), n_gpu_layers=engine.n_gpu_layers) as opened:
        tokens = opened.tokenize(text)[: 2 * _MOST_PROMPT]
        n_prompt = len(tokens) // 2
        if n_prompt < _LEAST_PROMPT:
            raise InputError(f"The text has only {len(tokens)} tokens.", hint=f"Give {2 * _LEAST_PROMPT} or more.")
        options = msgspec.structs.replace(
            context_options(engine, n_prompt + 2 * n_tokens + 16),
            device_sampling=False,
            max_outputs=max(n_tokens, _GAMMA + 1),
        )
        with TappedContext(opened, options) as context:
            context.on_pass = partial(report_progress, "looking for blocks to leave out")
            search = _LayerSearch(context, source, tokens[:n_prompt], n_tokens)
            started_ns = MonotonicClock().now_ns()
            best = search.greedy(len(uniform)) if method == "greedy" else search.conflayers(fraction)
            as_many = uniform if len(uniform) == len(best) else uniform_skip(n_layers, len(best) / n_layers)
            search_ns = MonotonicClock().now_ns() - started_ns
            fresh = tokens[n_prompt:]
            rates = {skipped: search.acceptance(skipped, fresh, n_tokens) for skipped in (best, as_many)}
            if search.may_go(as_many) and rates[as_many] > rates[best]:
                best = as_many
            return LayersFound(
                skipped=best,
                acceptance_rate=rates[best],
                uniform=as_many,
                uniform_acceptance_rate=rates[as_many],
                n_candidates=search.n_candidates,
                search_ns=search_ns,
            )


def mixer_names(source: Source) -> list[tuple[str, ...]]:
    """The tensors of each block whose sum its mixer adds to the residual stream, as llama.cpp's graphs call them."""
    layers, recurrent = range(trunk_layers(source) or 0), set(state_layers(source))
    if source.architecture == "falcon-h1":
        return [(f"attn_out-{layer}", f"ssm_out-{layer}") for layer in layers]
    if recurrent:  # one kind of mixer a block
        return [(f"linear_attn_out-{i}" if i in recurrent else f"attn_output-{i}",) for i in layers]
    return [(f"attn_out-{layer}",) for layer in layers]


class _LayerSearch:
    """A text, the model's own continuation of it, and sets of blocks tried on both."""

    def __init__(self, context: TappedContext, source: Source, prompt: tuple[int, ...], n_tokens: int) -> None:
        """Take in a text and continue it greedily; the continuation is what a draft would have to predict."""
        self._context, self._prompt = context, prompt
        self._mixers = mixer_names(source)
        self._n_layers = len(self._mixers)
        self._attention = frozenset(attention_layers(source))
        self._recurrent = bool(state_layers(source))
        self.n_candidates = 0
        rollback = make_rollback("trim", context)  # plain decoding takes nothing back
        limits = GenerationLimits(n_predict=n_tokens)
        self._output = generate(context, NoDrafter(), rollback, prompt, limits, MonotonicClock()).tokens
        context.clear()
        context.decode(prompt)
        if self._recurrent:
            context.save_state()

    def score(self, skipped: Iterable[int]) -> Score:
        """How many of the continuation's tokens the draft without `skipped` would choose after the true ones before."""
        context, output = self._context, self._output
        self.n_candidates += 1
        with context.tapped(SkipTap(tuple(skipped))):
            context.decode(output[:-1], n_outputs=len(output) - 1)
        rows = log_softmax(context.logits())
        if self._recurrent:
            context.load_state()
        context.truncate(len(self._prompt))
        wanted = np.array(output[1:])
        return float((rows.argmax(axis=1) == wanted).mean()), float(rows[np.arange(len(wanted)), wanted].mean())

    def greedy(self, n_skip: int) -> tuple[int, ...]:
        """`n_skip` blocks, left out one after another; fewer where no other block may go."""
        chosen: list[int] = []
        scores = {layer: self.score((layer,)) for layer in range(1, self._n_layers - 1) if self.may_go((layer,))}
        promising = list(scores)
        while promising and len(chosen) < n_skip:
            chosen.append(max(promising, key=lambda layer: scores[layer]))
            del scores[chosen[-1]]
            allowed = [layer for layer in scores if self.may_go((*chosen, layer))]
            promising = sorted(allowed, key=lambda layer: scores[layer], reverse=True)[:_TRIED_A_STEP]
            if len(chosen) < n_skip:
                scores.update({layer: self.score((*chosen, layer)) for layer in promising})
        return tuple(sorted(chosen))

    def may_go(self, skipped: Iterable[int]) -> bool:
        """Whether a file without these blocks can be loaded: one block with attention must stay."""
        return not self._attention <= set(skipped)

    def conflayers(self, fraction: float) -> tuple[int, ...]:
        """The set accepted most of those that confidence chooses along the continuation."""
        text = (*self._prompt, *self._output)
        first = len(self._prompt)
        best: tuple[float, tuple[int, ...]] = (-1.0, ())
        for i in range(_CONF_CHOICES):
            end = first + i * _CONF_INTERVAL
            if end > len(text):
                break
            confidence = self._confidence(text[max(0, end - _CONF_WINDOW) : end])
            skipped = least_confident(confidence, fraction)
            if not self.may_go(skipped):  # the most confident block with attention stays
                stays = max(self._attention, key=lambda layer: confidence[layer])
                skipped = tuple(layer for layer in skipped if layer != stays)
            if skipped:
                best = max(best, (self.acceptance(skipped, text[:end], _CONF_INTERVAL), skipped))
        if not best[1]:
            raise UnsupportedError(
                f"Confidence leaves no set of {self._n_layers} blocks to choose.", hint="Search with greedy instead."
            )
        return best[1]

    def _confidence(self, tokens: tuple[int, ...]) -> list[float]:
        """Confidence of what each block's mixer and feed-forward half add to the residual stream, summed."""
        context = self._context
        halves = [(mixer, (f"ffn_out-{layer}",)) for layer, mixer in enumerate(self._mixers)]
        names = {name for half in itertools.chain(*halves) for name in half}
        values = dict[str, npt.NDArray[np.float32]]()

        def take(name: str, rows: npt.NDArray[np.float32]) -> None:
            if rows.shape[1] == context.n_embd:  # tensors of another width may have the same name
                values[name] = rows

        context.clear()
        with context.tapped(ReadTap(names.__contains__, take)):
            context.decode(tokens, n_outputs=1)
        missing = sorted(names - values.keys())
        if missing:
            raise UnsupportedError(
                f"The graph of this architecture has no tensor {missing[0]}.", hint="Search with greedy instead."
            )
        added = ([np.sum([values[name] for name in half], axis=0) for half in block] for block in halves)
        return [sum(map(module_confidence, block)) for block in added]

    def acceptance(self, skipped: tuple[int, ...], prompt: tuple[int, ...], n_predict: int) -> float:
        """Accepted / proposed over real rounds after `prompt`, the draft reading the model's own memory."""
        context = self._context
        self.n_candidates += 1
        drafter = InPlaceDraft(context, SkipTap(skipped), recurrent=self._recurrent)
        limits = GenerationLimits(n_predict=n_predict, gamma=_GAMMA)
        rollback = make_rollback("checkpoint" if self._recurrent else "trim", context)
        result = generate(context, drafter, rollback, prompt, limits, MonotonicClock())
        return sums(result.rounds).acceptance_rate or 0.0


class InPlaceDraft(Drafter):
    """Drafts on the target's own context with blocks bridged: what is accepted is the cut's, what it takes is not."""

    def __init__(self, context: TappedContext, tap: Tap, *, recurrent: bool) -> None:
        """`recurrent`: the target has memory that cannot be cut and must be saved before a draft."""
        self._context, self._tap, self._recurrent = context, tap, recurrent
        self._chain, self._last = Chain(MonotonicClock()), 0

    def propose(self, k: int) -> Proposal:
        """Up to `k` tokens, each from a pass with the blocks bridged."""
        context, chain, n_past = self._context, self._chain, self._context.n_past
        if self._recurrent:
            context.save_state()
        with context.tapped(self._tap):
            context.decode((self._last,))
            chain.start(k)
            while chain.extend(context):
                context.decode(chain.tokens[-1:])
        if self._recurrent:
            context.load_state()
        context.truncate(n_past)
        return chain.proposal()

    def observe(self, verification: Verification) -> None:
        self._last = verification.committed[-1]


def module_confidence(hidden: npt.NDArray[np.float32]) -> float:
    """One minus the normalised entropy of softmax(h), meaned over rows: 0 says everything alike, 1 one thing only.

    `hidden` has shape (positions, width).
    """
    shifted = hidden.astype(np.float64) - hidden.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    p = weights / weights.sum(axis=1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    return float((1.0 - entropy / log(hidden.shape[1])).mean())


def least_confident(confidence: Sequence[float], share: float) -> tuple[int, ...]:
    """Blocks to leave out, given the confidence of every block; first and last stay.

    Block i goes when c_i < mean(window) - lambda * std(window), the window around it without itself. lambda moves in
    steps of 0.05 until between `share` and `share` + 0.25 of the blocks go; where no step does, the least confident
    blocks against their windows go.
    """
    n_layers = len(confidence)
    inner = np.asarray(confidence[1:-1], dtype=np.float64)
    if inner.size < 3:
        return ()
    spread = float(inner.std())
    scores = (inner - inner.mean()) / spread if spread else np.zeros_like(inner)
    margins = _margins(scores, n_layers)
    least = max(1, round(share * n_layers))
    most = max(least, int((share + _CONF_SLACK) * n_layers))
    threshold = 0.0
    for _ in range(_CONF_MOST_STEPS):
        n_out = int((margins < threshold).sum())
        if n_out < least:
            threshold += _CONF_STEP
        elif n_out > most:
            threshold -= _CONF_STEP
        else:
            return tuple(int(i) + 1 for i in np.flatnonzero(margins < threshold))
    return tuple(sorted(int(i) + 1 for i in np.argsort(margins, kind="stable")[:least]))


def _margins(scores: npt.NDArray[np.float64], n_layers: int) -> npt.NDArray[np.float64]:
    """(c_i - mean of the window) / std of the window, so that block i goes when this is below -lambda."""
    bend = np.abs(np.gradient(np.gradient(scores)))
    top = float(bend.max())
    bend = 0.5 + 0.5 * (bend - float(bend.mean())) / top if top else np.full_like(bend, 0.5)
    n_equal = 1 + int(np.argmin(np.isclose(bend, bend[0]))) if not np.isclose(bend, bend[0]).all() else 1
    margins = np.empty_like(scores)
    for i in range(scores.size):
        reach = 2 + int(5 * n_equal * float(np.clip(bend[i], 0, 1)) * (i + 2) / n_layers)
        window = np.delete(scores[max(0, i - reach) : i + reach + 1], min(i, reach))
        deviation = float(window.std())
        margins[i] = (scores[i] - float(window.mean())) / deviation if deviation else 0.0
    return margins

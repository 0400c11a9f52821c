"""Which blocks a model drafts best without, tried on the model itself with blocks bridged in place.

One block after another is left out, each time the one whose loss changes the fewest greedy tokens. What is found stands
against as many blocks spread evenly, on a part of the text that was not searched on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.drafters.chain import Chain
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import Draft, Drafter, NoDrafter, Outcome
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.taps import SkipTap, Tap, TappedSession
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import session_options
from mlsd.errors import InputError
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers, state_layers, uniform_skip
from mlsd.measure.messages import LayerSearchJob, LayersFound
from mlsd.measure.worker.perplexity import log_softmax
from mlsd.trials.sums import sums

_TRIED_A_STEP = 4
_LEAST_PROMPT = 8
_MOST_PROMPT = 512  # tokens before the continuation that decides; a longer text changes little and costs much

Score = tuple[float, float]  # share of tokens kept, and their mean log-probability, which breaks ties


def search_layers(job: LayerSearchJob) -> LayersFound:
    """Run the search of the job. Raises: InputError for a text too short or a share that leaves nothing out."""
    source = Source(Path(job.model.path))
    n_layers = trunk_layers(source) or 0
    uniform = uniform_skip(n_layers, job.fraction)
    if not uniform:
        raise InputError(f"{job.fraction:g} of {n_layers} blocks is less than one block.", hint="Give a larger share.")
    with LlamaModel(Path(job.model.path), n_gpu_layers=job.engine.n_gpu_layers) as model:
        tokens = model.tokenize(job.text)[: 2 * _MOST_PROMPT]
        n_prompt = len(tokens) // 2
        if n_prompt < _LEAST_PROMPT:
            raise InputError(f"The text has only {len(tokens)} tokens.", hint=f"Give {2 * _LEAST_PROMPT} or more.")
        options = msgspec.structs.replace(
            session_options(job.engine, n_prompt + 2 * job.n_tokens + 16),
            device_sampling=False,
            max_outputs=max(job.n_tokens, job.gamma + 1),
        )
        with TappedSession(model, options) as session:
            lab = _Lab(session, job, source, n_layers)
            lab.read(tokens[:n_prompt])
            started_ns = MonotonicClock().now_ns()
            found = lab.greedy(len(uniform))
            as_many = uniform if len(uniform) == len(found) else uniform_skip(n_layers, len(found) / n_layers)
            search_ns = MonotonicClock().now_ns() - started_ns
            fresh = tokens[n_prompt:]
            rates = {skipped: lab.acceptance(skipped, fresh, job.n_tokens) for skipped in (found, as_many)}
            if lab.may_go(as_many) and rates[as_many] > rates[found]:
                found = as_many
            return LayersFound(
                skipped=found,
                acceptance_rate=rates[found],
                uniform=as_many,
                uniform_acceptance_rate=rates[as_many],
                n_candidates=lab.n_candidates,
                search_ns=search_ns,
            )


class _Lab:
    """A text, the model's own continuation of it, and sets of blocks tried on both."""

    def __init__(self, session: TappedSession, job: LayerSearchJob, source: Source, n_layers: int) -> None:
        self._session, self._job, self._n_layers = session, job, n_layers
        self._attention = frozenset(attention_layers(source))
        self._recurrent = bool(state_layers(source))
        self._strategy = "checkpoint" if self._recurrent else "trim"
        self._prompt: tuple[int, ...] = ()
        self._output: tuple[int, ...] = ()
        self.n_candidates = 0

    def read(self, prompt: tuple[int, ...]) -> None:
        """Take in a text and continue it greedily; the continuation is what a draft would have to predict."""
        session = self._session
        limits = GenerationLimits(n_predict=self._job.n_tokens)
        rollback = make_rollback("trim", session)  # plain decoding takes nothing back
        self._prompt = prompt
        self._output = generate(session, NoDrafter(), rollback, prompt, limits, MonotonicClock()).tokens
        session.clear()
        session.decode(prompt)
        if self._recurrent:
            session.save_state()

    def score(self, skipped: Iterable[int]) -> Score:
        """How many of the continuation's tokens the draft without `skipped` would choose after the true ones before."""
        session, output = self._session, self._output
        self.n_candidates += 1
        with session.tapped(SkipTap(tuple(skipped))):
            session.decode(output[:-1], n_outputs=len(output) - 1)
        rows = log_softmax(session.logits())
        if self._recurrent:
            session.load_state()
        session.truncate(len(self._prompt))
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

    def acceptance(self, skipped: tuple[int, ...], prompt: tuple[int, ...], n_predict: int) -> float:
        """Accepted / proposed over real rounds after `prompt`, the draft reading the model's own memory."""
        session = self._session
        self.n_candidates += 1
        drafter = InPlaceDraft(session, SkipTap(skipped), recurrent=self._recurrent)
        limits = GenerationLimits(n_predict=n_predict, gamma=self._job.gamma)
        result = generate(session, drafter, make_rollback(self._strategy, session), prompt, limits, MonotonicClock())
        return sums(result.rounds).acceptance_rate or 0.0


class InPlaceDraft(Drafter):
    """Drafts on the target's own session with blocks bridged: what is accepted is the cut's, what it takes is not."""

    def __init__(self, session: TappedSession, tap: Tap, *, recurrent: bool) -> None:
        """`recurrent`: the target has memory that cannot be cut and must be saved before a draft."""
        self._session, self._tap, self._recurrent = session, tap, recurrent
        self._chain, self._last = Chain(MonotonicClock()), 0

    def propose(self, k: int) -> Draft:
        """Up to `k` tokens, each from a pass with the blocks bridged."""
        session, n_past = self._session, self._session.n_past
        if self._recurrent:
            session.save_state()
        with session.tapped(self._tap):
            session.decode((self._last,))
            tokens, _ = self._chain.grow(k, session, session.decode)
        if self._recurrent:
            session.load_state()
        session.truncate(n_past)
        return Draft(tokens=tokens)

    def observe(self, outcome: Outcome) -> None:
        self._last = outcome.committed[-1]

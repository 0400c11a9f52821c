"""Drafting with a second, smaller model: one token after another, with its own memory and its own rollback.

The draft's memory runs behind the committed tokens; the first decode of a round takes in the newest committed tokens
and gives the first proposal, so catching up costs no pass of its own. The mark lies right after that decode: all it
holds is confirmed. Methods of rollback differ in how far they go back when proposals are rejected (`engine.rollback`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.drafters.chain import Chain, Doubt
from mlsd.drafters.options import SMALL_MODEL_STUDY, Preset, read_options
from mlsd.engine.drafter import Draft, Outcome
from mlsd.engine.llama.open import open_session
from mlsd.engine.rollback import Rollback, make_rollback
from mlsd.engine.session import Session
from mlsd.engine.vocabulary import check_vocabularies, readable
from mlsd.errors import InputError
from mlsd.records import DRAFT_MODEL

OPTIONS = Doubt
# Draft lengths of "SpS" (for Llama-3.2-1B it names none).
PRESETS = {
    "qwen2.5-1.5b": Preset(gamma=2, values={}, source=SMALL_MODEL_STUDY),
    "smollm2": Preset(gamma=2, values={}, source=SMALL_MODEL_STUDY),
    "vicuna-7b": Preset(gamma=10, values={}, source=SMALL_MODEL_STUDY),
}


def make(bench: DrafterBench) -> DraftModel:
    """Open the draft beside the target.

    Raises: InputError without a draft, VocabularyError when the two do not fit, RollbackError when no strategy does.
    """
    if bench.draft_path is None:
        raise InputError("The draft-model method needs a draft.", hint="Name one with --draft.")
    strategy = bench.draft_rollback(bench.draft_path)
    n_vocab, doubt = bench.target.vocabulary.n_tokens, read_options(bench.spec, Doubt, PRESETS)
    chain = Chain(bench.clock, bench.sampling, doubt, n_vocab=n_vocab)
    options = msgspec.structs.replace(bench.options, device_sampling=chain.on_device, max_outputs=1)
    session = open_session(bench.open_model(bench.draft_path), options)
    try:
        check_vocabularies(bench.target, session)
        return DraftModel(session, make_rollback(strategy, session), bench.clock, chain)
    except BaseException:
        session.close()
        raise


class DraftModel:
    """A chain of tokens from a draft session, which must give logits where the chain asks for them."""

    name = DRAFT_MODEL

    def __init__(self, session: Session, rollback: Rollback, clock: Clock, chain: Chain | None = None) -> None:
        self._session = session
        self._rollback = rollback
        self._clock = clock
        self._chain = chain or Chain(clock)
        self._context: list[int] = []
        self._drafted: tuple[int, ...] = ()
        self.rollback_name: str | None = rollback.name
        self._n_steps = 0
        self._n_catch_up = 0
        self._forward_ns = self._rollback_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Decode the prompt."""
        self._session.clear()
        self._chain.begin(rng)
        self._context = readable(prompt, self._session)
        self._drafted = ()
        self._n_steps = self._n_catch_up = 0
        self._forward_ns = self._rollback_ns = 0
        self._session.decode(self._context, n_outputs=0)

    def propose(self, k: int) -> Draft:
        """Up to `k` tokens, each from a pass over the one before."""
        if k < 1:
            self._drafted = ()
            return Draft()
        pending = self._context[self._session.n_past :]
        self._forward(pending)
        self._n_catch_up += len(pending)
        started_ns = self._clock.now_ns()
        if k > 1:  # with one proposal nothing but confirmed tokens enters the memory
            self._rollback.mark()
        mark_ns = self._clock.now_ns() - started_ns
        self._rollback_ns += mark_ns
        tokens, rows = self._chain.grow(k, self._session, self._forward)
        self._drafted = tokens
        return Draft(tokens=tokens, probabilities=rows, mark_ns=mark_ns)

    def _forward(self, tokens: Sequence[int]) -> None:
        started_ns = self._clock.now_ns()
        self._session.decode(tokens)
        self._forward_ns += self._clock.now_ns() - started_ns
        self._n_steps += 1

    def observe(self, outcome: Outcome) -> None:
        """Forget rejected proposals; the newest committed tokens wait for the next catch-up."""
        n_confirmed = len(self._context)
        self._context.extend(readable(outcome.committed, self._session))
        if self._drafted:
            # The last proposal was never decoded here; of the others, the accepted ones may stay.
            n_keep = min(self._session.n_past, n_confirmed + outcome.accepted)
            started_ns = self._clock.now_ns()
            self._rollback.rewind(n_keep, ())
            self._rollback_ns += self._clock.now_ns() - started_ns
            self._drafted = ()

    def stats(self) -> dict[str, float]:
        """Draft passes and positions decoded to catch up; the time of all passes, and of marking and rewinding."""
        return {
            **self._chain.stats(),
            "draft_steps": float(self._n_steps),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(self._forward_ns),
            "draft_rollback_ns": float(self._rollback_ns),
        }

    @property
    def failed_native_calls(self) -> int:
        """Failures that an unchecked session ignored."""
        return self._session.failed_native_calls

    def close(self) -> None:
        """Free the draft's context."""
        self._session.close()

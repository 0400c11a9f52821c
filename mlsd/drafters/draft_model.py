"""A draft model beside the target: a chain of tokens, with its own memory and its own rollback (`engine.rollback`).

The first decode of a round takes in the newest committed tokens and gives the first proposal, so catching up costs no
pass of its own. The mark lies right after that decode: all that memory then holds is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TypeVar

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain, Doubt
from mlsd.drafters.method import DrafterSetup, Method, Read
from mlsd.drafters.options import small_model_study
from mlsd.drafters.recipe import Context, Opening
from mlsd.engine.drafter import Draft, Drafter, Outcome
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.rollback import Rollback, make_rollback, rollback_options
from mlsd.engine.session import Session
from mlsd.engine.vocabulary import check_vocabularies, readable
from mlsd.records import DRAFT_MODEL

T = TypeVar("T")


class DraftModel(Drafter):
    """A chain of tokens from a draft session, which must give logits where the chain asks for them."""

    pass_bytes: int | None = None  # weights that a pass over one token reads, where the draft is made of its target

    def __init__(
        self, session: Session, rollback: Rollback, clock: Clock, chain: Chain | None = None,
        read: Read = DrafterSetup.read,
    ) -> None:  # fmt: skip
        """`read` brings the prompt into the session."""
        self._session = session
        self._read = read
        self._rollback = rollback
        self._clock = clock
        self._chain = chain or Chain(clock)
        self.rollback_name = rollback.name
        self._forget()

    def _forget(self) -> None:
        self._context: list[int] = []
        self._drafted: tuple[int, ...] = ()
        self._n_steps = self._n_catch_up = self._forward_ns = self._rollback_ns = 0
        self._single_ns: list[int] = []  # of each pass over one token

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._session.clear()
        self._chain.begin(rng)
        self._forget()
        self._context = readable(prompt, self._session.tokenizer)
        self._read(self._session, self._context)

    def propose(self, k: int) -> Draft:
        if k < 1:
            self._drafted = ()
            return Draft()
        before_ns = self._rollback_ns
        self._catch_up()
        if k > 1:  # with one proposal nothing but confirmed tokens enters the memory
            self._timed(self._rollback.mark)
        tokens, rows = self._chain.grow(k, self._session, self._speculate)
        self._drafted = tokens
        return Draft(tokens=tokens, probabilities=rows, mark_ns=self._rollback_ns - before_ns)

    def _catch_up(self) -> None:
        pending = self._context[self._session.n_past :]
        self._forward(pending)
        self._n_catch_up += len(pending)

    def _timed(self, act: Callable[[], object]) -> None:
        started_ns = self._clock.now_ns()
        act()
        self._rollback_ns += self._clock.now_ns() - started_ns

    def _speculate(self, tokens: Sequence[int]) -> None:
        self._timed(self._rollback.step)
        self._forward(tokens)

    def _forward(self, tokens: Sequence[int]) -> None:
        started_ns = self._clock.now_ns()
        self._session.decode(tokens)
        span_ns = self._clock.now_ns() - started_ns
        self._forward_ns += span_ns
        if len(tokens) == 1:
            self._single_ns.append(span_ns)
        self._n_steps += 1

    def observe(self, outcome: Outcome) -> None:
        """Forget rejected proposals; the newest committed tokens wait for the next catch-up."""
        n_confirmed = len(self._context)
        self._context.extend(readable(outcome.committed, self._session.tokenizer))
        if self._drafted:
            # The last proposal was never decoded here; of the others, the accepted ones may stay.
            n_keep = min(self._session.n_past, n_confirmed + outcome.accepted)
            self._timed(partial(self._rollback.rewind, n_keep, ()))
            self._drafted = ()

    def stats(self) -> dict[str, float]:
        """Draft passes and positions decoded to catch up; the time of all passes, and of marking and rewinding."""
        return {
            **self._chain.stats(),
            "draft_steps": float(self._n_steps),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(self._forward_ns),
            "draft_rollback_ns": float(self._rollback_ns),
            **step_stats(self._single_ns),
            **({} if self.pass_bytes is None else {"draft_read_bytes": float(self.pass_bytes * self._n_steps)}),
        }

    @property
    def failed_native_calls(self) -> int:
        return self._session.failed_native_calls

    def close(self) -> None:
        self._session.close()


def step_stats(single_ns: Sequence[int]) -> dict[str, float]:
    """T_draft(1): the median pass over one token."""
    return {"draft_step_ns": float(median(single_ns))} if single_ns else {}


def chain_context(opening: Opening, doubt: Doubt, *, rolls_back: bool = True) -> Context:
    """The context of a model that drafts chains: the target's but for what a chain reads and a rollback keeps of it."""
    nobody_reads_logits = opening.sampling.greedy and doubt.p_min == 0
    on_device = opening.options.device_sampling and nobody_reads_logits
    options = msgspec.structs.replace(opening.options, device_sampling=on_device, max_outputs=1)
    if not rolls_back:
        return Context(whose="draft", options=options)
    strategy = opening.draft_rollback()
    options = rollback_options(strategy, options, max(1, opening.gamma - 1))
    return Context(whose="draft", options=options, rollback=strategy)


def open_draft(
    setup: DrafterSetup, chain: Chain, context: Context | None = None, *, n_experts: int | None = None
) -> DraftModel:
    """The second model as a draft with its own memory; `n_experts` in place of what the file says of its router.

    Raises: RollbackError when no strategy is exact for it, VocabularyError when its tokens are not the target's.
    """
    context = context or setup.draft

    def own_memory(session: LlamaSession) -> DraftModel:
        check_vocabularies(setup.target.tokenizer, session.tokenizer)
        return DraftModel(session, make_rollback(context.rollback or "", session), setup.clock, chain, setup.read)

    return open_second(setup, context, own_memory, n_experts)


def open_second(
    setup: DrafterSetup, context: Context, make: Callable[[LlamaSession], T], n_experts: int | None = None
) -> T:
    """What `make` makes of a session over the second model, which is closed where it cannot."""
    session = open_session(setup.open_model(setup.second, n_experts), context.options)
    try:
        return make(session)
    except BaseException:
        session.close()
        raise


METHOD = Method(
    name=DRAFT_MODEL,
    summary="Drafting with a second, smaller model: one token after another, with its own memory and its own rollback.",
    source="Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318)",
    options=Doubt,
    open=lambda setup, own: open_draft(setup, setup.chain(own, n_vocab=setup.target.tokenizer.vocabulary.n_tokens)),
    contexts=lambda opening, own: opening.with_draft(chain_context(opening, own)),
    needs="draft",
    # Draft lengths of "SpS" (for Llama-3.2-1B it names none).
    presets=(
        small_model_study("qwen2.5-1.5b", 2),
        small_model_study("smollm2", 2),
        small_model_study("vicuna-7b", 10),
    ),
)

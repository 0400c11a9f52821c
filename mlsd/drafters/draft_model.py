"""A draft model beside the target: a chain of tokens, with its own memory and its own rollback (`engine.rollback`).

The first decode of a round takes in the newest committed tokens and gives the first proposal, so catching up costs no
pass of its own. The mark lies right after that decode: all that memory then holds is confirmed.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import P_MIN, Chain, Doubt
from mlsd.drafters.method import DrafterSetup, MethodOptions, Read, drafting_method
from mlsd.drafters.options import small_model_study
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.engine.context import Context
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import Rollback, TimedContext, make_rollback, rollback_options
from mlsd.engine.verify import Proposal, Verification
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.records import DRAFT_MODEL

T = TypeVar("T")


class DraftModel(Drafter):
    """A chain of tokens from a draft context, which must give logits where the chain asks for them."""

    pass_bytes: int | None = None  # weights that a pass over one token reads, where the draft is made of its target

    def __init__(
        self, context: Context, rollback: Rollback, clock: Clock, chain: Chain | None = None,
        read: Read = DrafterSetup.read,
    ) -> None:  # fmt: skip
        """`read` brings the prompt into the context."""
        self._timed, self._read = TimedContext(context, rollback, clock), read
        self._n_vocab = context.tokenizer.vocabulary.n_tokens
        self._chain = chain or Chain(clock)
        self.rollback_name = rollback.name
        self._forget()

    def _forget(self) -> None:
        self._timed.start()
        self._text: list[int] = []
        self._n_catch_up = self._n_drafted = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._timed.context.clear()
        self._chain.begin(rng)
        self._forget()
        self._take_in(prompt)
        self._read(self._timed.context, self._text)

    def _take_in(self, tokens: Sequence[int]) -> None:
        """What only its target's larger vocabulary has becomes token 0."""
        self._text += tokens if max(tokens) < self._n_vocab else [t if t < self._n_vocab else 0 for t in tokens]

    def propose(self, k: int) -> Proposal:
        timed, chain = self._timed, self._chain
        before_ns = timed.rollback_ns
        timed.decode(self._news())
        if k > 1:  # with one proposal nothing but confirmed tokens enters the memory
            timed.mark()
        chain.start(k)
        while chain.extend(timed.context):
            timed.step()
            timed.decode(chain.tokens[-1:])
        self._n_drafted = len(chain.tokens)
        return chain.proposal(timed.rollback_ns - before_ns)

    def _news(self) -> list[int]:
        """The committed tokens that the context has not read."""
        news = self._text[self._timed.context.n_past :]
        self._n_catch_up += len(news)
        return news

    def observe(self, verification: Verification) -> None:
        """Forget rejected proposals; the newest committed tokens wait for the next catch-up."""
        n_confirmed = len(self._text)
        self._take_in(verification.committed)
        if self._n_drafted:
            # The last proposal was never decoded here; of the others, the accepted ones may stay.
            self._timed.rewind(min(self._timed.context.n_past, n_confirmed + verification.accepted))
            self._n_drafted = 0

    def stats(self) -> dict[str, float]:
        """Draft passes and positions decoded to catch up; the time of all passes, and of marking and rewinding."""
        timed = self._timed
        return {
            **self._chain.stats(),
            "draft_steps": float(timed.n_passes),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(timed.pass_ns),
            "draft_rollback_ns": float(timed.rollback_ns),
            **step_stats(timed.single_ns),
            **({} if self.pass_bytes is None else {"draft_read_bytes": float(self.pass_bytes * timed.n_passes)}),
        }

    @property
    def failed_native_calls(self) -> int:
        return self._timed.context.failed_native_calls

    def close(self) -> None:
        self._timed.context.close()


def step_stats(single_ns: Sequence[int]) -> dict[str, float]:
    """T_draft(1): the median pass over one token."""
    return {"draft_step_ns": float(median(single_ns))} if single_ns else {}


def chain_context(opening: Opening, doubt: Doubt, *, rolls_back: bool = True) -> ContextPlan:
    """The context of a model that drafts chains: the target's but for what a chain reads and a rollback keeps of it."""
    nobody_reads_logits = opening.sampling.greedy and doubt.p_min == 0
    on_device = opening.options.device_sampling and nobody_reads_logits
    options = msgspec.structs.replace(opening.options, device_sampling=on_device, max_outputs=1)
    if not rolls_back:
        return ContextPlan(whose="draft", options=options)
    strategy = opening.draft_rollback()
    options = rollback_options(strategy, options, max(1, opening.gamma - 1))
    return ContextPlan(whose="draft", options=options, rollback=strategy)


def open_draft(
    setup: DrafterSetup, chain: Chain, plan: ContextPlan | None = None, *, n_experts: int | None = None
) -> DraftModel:
    """The second model as a draft with its own memory; `n_experts` in place of what the file says of its router.

    Raises: EngineError when no strategy is exact for it, or its tokens are not the target's.
    """
    plan = plan or setup.draft

    def own_memory(context: LlamaContext) -> DraftModel:
        check_vocabularies(setup.target.tokenizer, context.tokenizer)
        return DraftModel(context, make_rollback(plan.rollback or "", context), setup.clock, chain, setup.read)

    return open_second(setup, plan, own_memory, n_experts)


def open_second(
    setup: DrafterSetup, plan: ContextPlan, make: Callable[[LlamaContext], T], n_experts: int | None = None
) -> T:
    """What `make` makes of a context over the second model, which is closed where it cannot."""
    context = open_context(setup.open_model(setup.second, n_experts), plan.options)
    try:
        return make(context)
    except BaseException:
        context.close()
        raise


@drafting_method(
    DRAFT_MODEL,
    summary="Drafting with a second, smaller model: one token after another, with its own memory and its own rollback.",
    source="Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318)",
    space={"p_min": P_MIN},
    needs="draft",
    # Draft lengths of "SpS" (for Llama-3.2-1B it names none).
    presets=(
        small_model_study("qwen2.5-1.5b", 2),
        small_model_study("smollm2", 2),
        small_model_study("vicuna-7b", 10),
    ),
)
class Options(MethodOptions, Doubt, frozen=True, kw_only=True):
    """Options of drafting with a second model."""

    def open(self, setup: DrafterSetup) -> DraftModel:
        return open_draft(setup, setup.chain(self, n_vocab=setup.target.tokenizer.vocabulary.n_tokens))

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        return opening.with_draft(chain_context(opening, self))

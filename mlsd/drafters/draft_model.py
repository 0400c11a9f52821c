"""A draft model beside the target, with its own memory and its own rollback: it drafts a chain, or EAGLE-2's tree.

A level of a tree costs one pass of the draft, whatever its width.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from mlsd.drafters.chain import P_MIN, EarlyStop
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.drafters.options import Range, small_model_study
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.drafters.trees import EAGLE_2, TreeDrafter, TreeOptions, tree_options, whole_tree
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.trees import LlamaTreeContext
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.engine.vocabulary import check_token_lists, check_vocabularies
from mlsd.gguf_tools.source import Source
from mlsd.records import DRAFT_MODEL


def check_vocabulary_of_files(target: Source, draft: Source) -> None:
    """Compare what two headers say of type, size and tokens, before either model is loaded. Raises: EngineError."""
    kinds = [source.text("tokenizer.ggml.model", "", prefixed=False) for source in (target, draft)]
    check_token_lists(kinds, [source.texts("tokenizer.ggml.tokens") for source in (target, draft)])


def chain_context(opening: Opening, stop: EarlyStop, *, rolls_back: bool = True) -> ContextPlan:
    """The context of a model that drafts chains: the target's but for what a chain reads and a rollback keeps of it."""
    logits_unread = opening.case.sampling.greedy and stop.p_min == 0
    on_device = opening.options.device_sampling and logits_unread
    options = msgspec.structs.replace(opening.options, device_sampling=on_device, max_outputs=1)
    if not rolls_back:
        return ContextPlan(whose="draft", options=options)
    strategy = opening.draft_rollback()
    options = rollback_options(strategy, options, max(1, opening.case.gamma - 1))
    return ContextPlan(whose="draft", options=options, rollback=strategy)


def open_memory(setup: DrafterSetup, plan: ContextPlan | None = None, *, n_experts: int | None = None) -> OwnMemory:
    """The second model as a draft with its own memory; `n_experts` in place of what the file says of its router.

    Raises: EngineError when no strategy is exact for it, or its tokens are not the target's.
    """
    plan = plan or setup.draft
    with open_second(setup, plan, n_experts) as context:
        check_vocabularies(setup.target.tokenizer, context.tokenizer)
        strategy = "trim" if plan.rollback is None else plan.rollback
        return OwnMemory(context, make_rollback(strategy, context), setup.clock, setup.read)


@contextmanager
def open_second(setup: DrafterSetup, plan: ContextPlan, n_experts: int | None = None) -> Iterator[LlamaContext]:
    """A context over the second model, which is closed where nothing can be made of it."""
    context = open_context(setup.open_model(setup.second, n_experts), plan.options)
    try:
        yield context
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
class DraftModelOptions(MethodOptions, EarlyStop, frozen=True, kw_only=True):
    """Options of drafting with a second model."""

    def check_second(self, target: Source, second: Source) -> None:
        check_vocabulary_of_files(target, second)

    def open(self, setup: DrafterSetup) -> ChainDrafter:
        chain = setup.chain(self, n_vocab=setup.target.tokenizer.vocabulary.n_tokens)
        return ChainDrafter(open_memory(setup), chain)

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        return opening.with_draft(chain_context(opening, self))


@drafting_method(
    "draft-tree",
    summary="Drafting a tree with a second model: EAGLE-2's policy over the draft's probabilities.",
    source="Li et al. 2024, EAGLE-2 (arXiv 2406.16858)",
    presets=EAGLE_2,
    space={
        "gamma": Range(low=4, high=48),
        "depth": Range(low=1, high=6),
        "top_k": Range(low=1, high=16),
    },
    needs="draft",
    chains_instead="Use --drafter draft-model: it drafts chains.",
)
class DraftTreeOptions(TreeOptions, frozen=True, kw_only=True):
    """Options of tree drafting with a second model."""

    def check_second(self, target: Source, second: Source) -> None:
        check_vocabulary_of_files(target, second)

    def open(self, setup: DrafterSetup) -> TreeDrafter:
        memory = open_memory(setup)
        assert isinstance(memory.model, LlamaTreeContext)
        n_vocab = min(side.tokenizer.vocabulary.n_tokens for side in (setup.target, memory.model))
        return TreeDrafter(memory, memory.model, self, setup, n_vocab=n_vocab)

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        levels = tree_options(opening.options, n_rows=self.depth * self.top_k, n_leaves=2 * self.top_k, commit="keep")
        draft = ContextPlan(whose="draft", options=levels)
        return opening.with_draft(draft, whole_tree(opening, self.commit))

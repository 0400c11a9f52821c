"""EAGLE-2's policy over a draft model's probabilities: a level of the tree costs one pass, whatever its width."""

from mlsd.drafters.draft_model import DraftModel, open_second
from mlsd.drafters.method import DrafterSetup, drafting_method
from mlsd.drafters.options import Preset, Range, small_model_study
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.drafters.trees import TreeGrower, TreeOptions, tree_options, whole_tree
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.trees import LlamaTreeContext
from mlsd.engine.rollback import make_rollback
from mlsd.engine.verify import Proposal
from mlsd.engine.vocabulary import check_vocabularies


class DraftTree(DraftModel):
    """Trees from a draft context."""

    def __init__(self, context: LlamaTreeContext, setup: DrafterSetup, grower: TreeGrower) -> None:
        self._levels, self._grower = context, grower
        super().__init__(context, make_rollback("trim", context), setup.clock)

    def _forget(self) -> None:
        super()._forget()
        self._grower.begin()

    def propose(self, k: int) -> Proposal:
        self._timed.decode(self._news())
        return self._grower.proposal(k, self._levels)

    def stats(self) -> dict[str, float]:
        return self._grower.stats(super().stats())


def _preset(name: str, gamma: int, depth: int, top_k: int) -> Preset:
    return small_model_study(name, gamma, method="EAGLE-2", depth=depth, top_k=top_k)


# Found best for EAGLE-2 heads; a draft model's passes cost more, so fewer levels may be better.
EAGLE_2 = (
    _preset("qwen2.5-1.5b", 48, 2, 20),
    _preset("smollm2", 48, 3, 20),
    _preset("llama-3.2-1b", 48, 2, 20),
    _preset("vicuna-7b", 60, 5, 10),
)


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
class Options(TreeOptions, frozen=True, kw_only=True):
    """Options of tree drafting with a second model."""

    def open(self, setup: DrafterSetup) -> DraftTree:
        def growing(context: LlamaContext) -> DraftTree:
            sides = (setup.target.tokenizer, context.tokenizer)
            check_vocabularies(*sides)
            grower = TreeGrower(self, setup, n_vocab=min(side.vocabulary.n_tokens for side in sides))
            assert isinstance(context, LlamaTreeContext)
            return DraftTree(context, setup, grower)

        return open_second(setup, setup.draft, growing)

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        levels = tree_options(opening.options, n_rows=self.depth * self.top_k, n_leaves=2 * self.top_k, commit="keep")
        draft = ContextPlan(whose="draft", options=levels)
        return opening.with_draft(draft, whole_tree(opening, self.commit))

"""EAGLE-3: a chain of tokens, or EAGLE-2's tree, from a trained block that is fed with the target's rows.

At position p the head reads token p + 1 and the encoded target rows of p. The newest committed token has no rows yet,
so its own position waits for the next round. A level of a tree costs one pass of the head, whatever its width. mlsd has
run heads of random weights only.
"""

from typing import Annotated

from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters.chain import P_MIN, EarlyStop
from mlsd.drafters.heads.head import HeadMemory, HeadOptions, open_head
from mlsd.drafters.method import DrafterSetup, drafting_method
from mlsd.drafters.model_drafter import ChainDrafter
from mlsd.drafters.options import Range
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.drafters.trees import EAGLE_2, TreeDrafter, TreeOptions, whole_tree
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.heads import EagleHead
from mlsd.engine.llama.model import LlamaModel


def eagle_memory(target: LlamaContext, head: EagleHead, clock: Clock) -> HeadMemory:
    """The memory of a head that reads the encoded rows of its target."""
    target_rows = target.layer_rows
    return HeadMemory(head, clock, lambda first, end: head.encode(target_rows.rows[first:end]), n_ahead=1)


@drafting_method(
    "eagle3",
    summary="Drafting with an EAGLE-3 head: one trained block that reads the target's rows of three depths.",
    source="Li et al. 2025, EAGLE-3 (arXiv 2503.01840)",
    space={"gamma": Range(low=1, high=8), "p_min": P_MIN},
    needs="head",
    target_kind="layer-rows",
)
class EagleOptions(HeadOptions, EarlyStop, frozen=True, kw_only=True):
    """Options of a chain from a head."""

    def open(self, setup: DrafterSetup) -> ChainDrafter:
        head = self.head(setup.target, open_head(setup, "eagle3")[0])
        return ChainDrafter(eagle_memory(setup.target, head, setup.clock), setup.chain(self))

    def head(self, target: LlamaContext, model: LlamaModel) -> EagleHead:
        return EagleHead(model, target)


@drafting_method(
    "eagle3-tree",
    summary="Drafting trees with an EAGLE-3 head: EAGLE-2's policy over the head's probabilities.",
    source="Li et al. 2024, EAGLE-2 (arXiv 2406.16858); Li et al. 2025, EAGLE-3 (arXiv 2503.01840)",
    presets=EAGLE_2,
    space={
        "gamma": Range(low=4, high=60),
        "depth": Range(low=1, high=8),
        "top_k": Range(low=1, high=16),
    },
    needs="head",
    target_kind="layer-rows",
    chains_instead="Use --drafter eagle3: it drafts chains.",
)
class EagleTreeOptions(TreeOptions, HeadOptions, frozen=True, kw_only=True):
    """Options of tree drafting with a head."""

    depth: Annotated[int, Meta(ge=1, le=16, description="levels, each a pass of the head")] = 5

    def open(self, setup: DrafterSetup) -> TreeDrafter:
        head = self.head(setup.target, open_head(setup, "eagle3")[0])
        return TreeDrafter(eagle_memory(setup.target, head, setup.clock), head, self, setup)

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        return opening.with_head(whole_tree(opening, self.commit))

    def head(self, target: LlamaContext, model: LlamaModel) -> EagleHead:
        return EagleHead(model, target, widest_level=self.top_k)

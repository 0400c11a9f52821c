"""EAGLE-2's policy over an EAGLE-3 head's probabilities: a level costs one pass of the head, whatever its width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from mlsd.drafters.draft_tree import EAGLE_2
from mlsd.drafters.heads.eagle3 import eagle_memory
from mlsd.drafters.heads.head import HeadMemory, HeadOptions, open_head
from mlsd.drafters.method import DrafterSetup, drafting_method
from mlsd.drafters.options import Range
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.drafters.trees import TreeGrower, TreeOptions, whole_tree
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.heads import EagleHead
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.verify import Proposal, Verification


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
class Options(TreeOptions, HeadOptions, frozen=True, kw_only=True):
    """Options of tree drafting with a head."""

    depth: Annotated[int, Meta(ge=1, le=16, description="levels, each a pass of the head")] = 5

    def open(self, setup: DrafterSetup) -> HeadTree:
        head = self.head(setup.target, open_head(setup, "eagle3")[0])
        return HeadTree(eagle_memory(setup.target, head, setup.clock), head, TreeGrower(self, setup))

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        return opening.with_head(whole_tree(opening, self.commit))

    def head(self, target: LlamaContext, model: LlamaModel) -> EagleHead:
        return EagleHead(model, target, widest_level=self.top_k)


class HeadTree(Drafter):
    """Trees from the head. A tree is not drawn: the target's own draws choose among its nodes, the likeliest."""

    rollback_name = "trim"

    def __init__(self, memory: HeadMemory, head: EagleHead, grower: TreeGrower) -> None:
        self._memory, self._head, self._grower = memory, head, grower

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._memory.begin(prompt)
        self._grower.begin()

    def propose(self, k: int) -> Proposal:
        self._memory.catch_up()
        return self._grower.proposal(k, self._head)

    def observe(self, verification: Verification) -> None:
        self._memory.observe(verification)

    def stats(self) -> dict[str, float]:
        return self._grower.stats(self._memory.stats())

    def close(self) -> None:
        self._head.close()

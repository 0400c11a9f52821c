"""EAGLE-3: a chain of tokens from a trained block, fed with the target's rows; `eagle3-tree` grows trees with it.

At position p the head reads token p + 1 and the encoded target rows of p. The newest committed token has no rows yet,
so its own position waits for the next round. mlsd has run heads of random weights only.
"""

from mlsd.clock import Clock
from mlsd.drafters.chain import P_MIN, Doubt
from mlsd.drafters.heads.head import HeadChain, HeadMemory, HeadOptions, open_head
from mlsd.drafters.method import DrafterSetup, drafting_method
from mlsd.drafters.options import Range
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.heads import EagleHead
from mlsd.engine.llama.model import LlamaModel


def eagle_memory(target: LlamaContext, head: EagleHead, clock: Clock) -> HeadMemory:
    """The memory of a head that reads the encoded rows of its target."""
    known = target.layer_rows
    return HeadMemory(head, clock, lambda first, end: head.encode(known.rows[first:end]), n_ahead=1)


@drafting_method(
    "eagle3",
    summary="Drafting with an EAGLE-3 head: one trained block that reads the target's rows of three depths.",
    source="Li et al. 2025, EAGLE-3 (arXiv 2503.01840)",
    space={"gamma": Range(low=1, high=8), "p_min": P_MIN},
    needs="head",
    target_kind="layer-rows",
)
class Options(HeadOptions, Doubt, frozen=True, kw_only=True):
    """Options of a chain from a head."""

    def open(self, setup: DrafterSetup) -> HeadChain:
        model, _ = open_head(setup, "eagle3")
        return HeadChain(eagle_memory(setup.target, self.head(setup.target, model), setup.clock), setup.chain(self))

    def head(self, target: LlamaContext, model: LlamaModel) -> EagleHead:
        return EagleHead(model, target)

"""EAGLE-3: a chain of tokens from a trained block, fed with the target's rows; `eagle3-tree` grows trees with it.

At position p the head reads token p + 1 and the encoded target rows of p. The newest committed token has no rows yet,
so its own position waits for the next round. mlsd has run heads of random weights only.
"""

from __future__ import annotations

from functools import partial

from mlsd.clock import Clock
from mlsd.drafters.chain import Doubt
from mlsd.drafters.heads.head import HeadChain, HeadMemory, check_head, check_rows, open_head
from mlsd.drafters.method import DrafterSetup, Method
from mlsd.drafters.options import Range
from mlsd.engine.llama.heads import EagleHead
from mlsd.engine.llama.session import LlamaSession

check_eagle = partial(check_head, "eagle3")


def eagle_memory(target: LlamaSession, head: EagleHead, clock: Clock) -> HeadMemory:
    """The memory of a head that reads the encoded rows of its target."""
    known = target.layer_rows
    return HeadMemory(head, clock, lambda first, end: head.encode(known.rows[first:end]), n_ahead=1)


def _open(setup: DrafterSetup, own: Doubt) -> HeadChain:
    opened = open_head(setup, "eagle3")
    head = EagleHead(opened.model, opened.target)
    return HeadChain(eagle_memory(opened.target, head, setup.clock), setup.chain(own))


METHOD = Method(
    name="eagle3",
    summary="Drafting with an EAGLE-3 head: one trained block that reads the target's rows of three depths.",
    source="Li et al. 2025, EAGLE-3 (arXiv 2503.01840)",
    options=Doubt,
    open=_open,
    contexts=lambda opening, own: opening.with_head(),
    space={"gamma": Range(low=1, high=8)},
    needs="head",
    head=lambda target, model, own: EagleHead(model, target),
    session="layer-rows",
    check_target=check_rows,
    check_second=check_eagle,
)

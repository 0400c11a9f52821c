"""Multi-token prediction: a chain from the next-token block inside a model's own file."""

import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import P_MIN, EarlyStop
from mlsd.drafters.heads.head import HeadMemory
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.model_drafter import ChainDrafter
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.heads import NextTokenHead
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.rows import Rows
from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.source import Source

# Shown to be exact on models of random weights.
ARCHITECTURES = ("qwen35", "qwen35moe", "qwen3next", "deepseek2", "glm4moe")


def block_memory(target: LlamaContext, head: NextTokenHead, clock: Clock) -> HeadMemory:
    """The memory of the block, which is used again and again; its target keeps the rows it reads from now on."""
    target_rows = target.layer_rows
    target_rows.keep_hidden()

    def true_rows(first: int, end: int) -> Rows:
        """The target's rows of positions first - 1 .. end - 2; before the text there is a row of zeros."""
        if first > 0:
            return target_rows.rows[first - 1 : end - 1]
        return np.concatenate([np.zeros((1, target_rows.rows.shape[1]), dtype=np.float32), target_rows.rows[: end - 1]])

    return HeadMemory(head, clock, true_rows)


@drafting_method(
    "mtp",
    summary="Drafting with the next-token block of the target (multi-token prediction), as Qwen3.5 has one.",
    source="Gloeckle et al. 2024, multi-token prediction (arXiv 2404.19737); llama.cpp's draft-mtp",
    space={"p_min": P_MIN},
    target_kind="layer-rows",
    loads_next_token_block=True,
)
class MtpOptions(MethodOptions, EarlyStop, frozen=True, kw_only=True):
    """Options of a chain from the next-token block."""

    def open(self, setup: DrafterSetup) -> ChainDrafter:
        memory = block_memory(setup.target, NextTokenHead(setup.target), setup.clock)
        return ChainDrafter(memory, setup.chain(self))

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        return opening.with_head()

    def head(self, target: LlamaContext, model: LlamaModel) -> NextTokenHead:
        return NextTokenHead(target)

    def check_target(self, target: Source) -> None:
        if target.architecture not in ARCHITECTURES:
            raise UnsupportedError(
                f"{target.path.name} is a {target.architecture} model; mtp was shown to be exact on "
                f"{', '.join(ARCHITECTURES)} only.",
                hint="Choose another drafter for it.",
            )
        if not target.count("nextn_predict_layers"):
            raise UnsupportedError(
                f"{target.path.name} has no next-token block: it was left out when the file was made.",
                hint="Use a GGUF converted with the model's MTP layers.",
            )

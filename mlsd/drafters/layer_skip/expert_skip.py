"""The target with fewer routed experts drafts for itself; a backend that maps weights holds both loads once."""

from typing import Annotated

from msgspec import Meta

from mlsd.drafters.layer_skip.subset import CutDraft, LayerSkipOptions, plan
from mlsd.drafters.method import drafting_method
from mlsd.drafters.options import Range, Values
from mlsd.errors import InputError, UnsupportedError
from mlsd.gguf_tools.read import source_weight
from mlsd.gguf_tools.source import Source

_LEAVE_OUT_BLOCKS = "Use --drafter layer-skip: it leaves out blocks."
_CHOICES = ("keep", "skip", "exit", "exit_share", "component")


@drafting_method(
    "expert-skip",
    summary="Self-speculation of a mixture: the draft is the target with fewer routed experts, with or without layers.",
    source="SS-MoE (WWW 2026); the expert budget of BEAM, with the weights as they are",
    space={
        "gamma": Range(low=1, high=8),
        "share": Values(values=(0.125, 0.25, 0.5, 0.75), unless=("experts",)),
        "fraction": Values(values=(0.0, 0.1, 0.2, 0.33), unless=_CHOICES),
    },
)
class ExpertSkipOptions(LayerSkipOptions, frozen=True, kw_only=True):
    """Options of drafting with fewer experts; blocks are left out as by layer-skip."""

    experts: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="routed experts of a layer that draft")] = (
        None
    )
    share: Annotated[
        float, Meta(gt=0, lt=1, description="the same as a share of those that the target uses, rounded down to one")
    ] = 0.5

    def made_draft(self, target: Source) -> CutDraft:
        """Raises: UnsupportedError without routed experts, InputError, ModelFileError."""
        n_used = source_weight(target).n_experts_used if target.count("expert_count") else 0
        if not n_used:
            raise UnsupportedError(
                f"{target.path.name} is dense: it has no routed experts, so it cannot draft with fewer.",
                hint=_LEAVE_OUT_BLOCKS,
            )
        n_experts = self.experts or max(1, int(self.share * n_used))
        if n_experts >= n_used:
            raise InputError(
                f"A draft with {n_experts} experts is no smaller: {target.path.name} uses {n_used} of a layer itself.",
                hint=f"Give experts=1 to {n_used - 1}." if n_used > 1 else _LEAVE_OUT_BLOCKS,
            )
        return plan(target, self, n_experts)

    def drafting_part(self) -> None:
        """The target's own weights draft."""

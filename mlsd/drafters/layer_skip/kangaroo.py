"""Kangaroo: an early exit behind a trained adapter, which is the user's own file.

Blocks and adapter become one draft model. The paper's verification goes on from the exit; here the target's pass
computes its first blocks again.
"""

from typing import Annotated

from msgspec import Meta

from mlsd.drafters.chain import EarlyStop, Probability
from mlsd.drafters.draft_model import chain_context, open_memory
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.model_drafter import ChainDrafter
from mlsd.drafters.options import Preset, Range, Values, small_model_study
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.errors import InputError
from mlsd.folders import given_path
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.adapter import Adapter
from mlsd.gguf_tools.surgery.edit import MadeDraft
from mlsd.gguf_tools.surgery.kangaroo import compose
from mlsd.records import OptionValue


def _preset(name: str, steps: int, p_min: float) -> Preset:
    return small_model_study(name, steps, exit=2, p_min=p_min)


@drafting_method(
    "kangaroo",
    summary=(
        "Kangaroo: the target's first blocks draft, a small trained adapter bridges to its head, and doubt ends a "
        "draft."
    ),
    source="Liu et al. 2024 (arXiv 2404.18911)",
    presets=(
        _preset("qwen2.5-1.5b", 7, 0.6),
        _preset("smollm2", 7, 0.7),
        _preset("llama-3.2-1b", 4, 0.8),
        _preset("vicuna-7b", 6, 0.3),
    ),
    space={
        "gamma": Range(low=1, high=8),
        "p_min": Values(values=(0.0, 0.3, 0.5, 0.6, 0.7, 0.8), unless=("preset",)),
    },
)
class KangarooOptions(MethodOptions, frozen=True, kw_only=True):
    """Options of Kangaroo."""

    adapter: Annotated[
        str, Meta(description="folder with config.json and model.safetensors, or the path of the latter")
    ]
    exit: Annotated[
        int, Meta(ge=1, description="the first so many blocks draft; what the adapter was trained behind")
    ] = 2
    p_min: Annotated[Probability, Meta(description="the draft ends behind a likeliest token below it (softmax)")] = 0.6
    content: Annotated[str, Meta(description="what the adapter holds; filled in when the spec is resolved")] = ""

    @property
    def early_stop(self) -> EarlyStop:
        return EarlyStop(p_min=self.p_min, p_min_mode="include")

    def open(self, setup: DrafterSetup) -> ChainDrafter:
        return ChainDrafter(open_memory(setup), setup.chain(self.early_stop))

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        return opening.with_draft(chain_context(opening, self.early_stop))

    def fill_in(self) -> dict[str, OptionValue]:
        """Another adapter under the same name is another case; one that is missing or none is refused here."""
        return {"content": Adapter(given_path(self.adapter)).content}

    def drafting_part(self) -> dict[str, OptionValue]:
        return {"exit": self.exit, "content": self.content or self.adapter}

    def made_draft(self, target: Source) -> MadeDraft:
        """Raises: InputError for a replaced adapter, and for one that does not fit."""
        adapter = Adapter(given_path(self.adapter))
        if self.content not in ("", adapter.content):
            raise InputError(
                f"{adapter.path} holds {adapter.content}, not {self.content}: it was replaced.",
                hint="Start the measurement again; its numbers belong to another adapter.",
            )
        edit = compose(target, adapter, self.exit)
        return MadeDraft(source=target, edit=edit, kind="kangaroo", recipe=f"{adapter.content} {self.exit}")

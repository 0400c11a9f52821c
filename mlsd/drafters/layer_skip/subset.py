"""Self-speculation: a draft cut out of its target. Two ways to run the same draft:

own      the draft in a file of its own with its own memory: real speed, less accepted than in the papers
sync     the same, but its memory is made the target's each round: real speed, what the papers accept
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters.chain import EarlyStop, EarlyStopMode, Probability
from mlsd.drafters.draft_model import chain_context, open_memory, open_second
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.drafters.options import Preset, Range, Values
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.state import BlobError, BlobShape, LinkPlan, StateLink
from mlsd.engine.rollback import Rollback
from mlsd.engine.verify import Verification
from mlsd.errors import InputError, UnsupportedError
from mlsd.gguf_tools.read import source_weight, trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import Component, attention_layers, choose_layers, plan_cut, read_layers, state_layers
from mlsd.gguf_tools.surgery.edit import Edit, MadeDraft
from mlsd.records import OptionValue

# Counts of experts that Metal's matrix product has a kernel for from 32 rows on: the `kernel_mul_mm_id_map0_ne20_*` of
# ggml-metal/kernels/mul_mm.metal and `ggml_metal_op_mul_mat_id_use_mm` of llama.cpp as llama-cpp-python 0.3.36 has it;
# the library for Macs of b11524 that set-up installs names the same.
METAL_EXPERT_COUNTS = (1, 2, 4, 5, 6, 8, 10, 16, 22)


def _of_hybrids(name: str, gamma: int, **values: OptionValue) -> Preset:
    return Preset(name=name, gamma=gamma, options=values, source="hybrid self-speculation paper (arXiv 2605.01106)")


# LayerSkip-33 % and early exit at half depth; the component drafts and the control without components.
PRESETS = (
    _of_hybrids("layerskip-33", 4, fraction=0.33),
    _of_hybrids("early-exit-50", 4, exit_share=0.5),
    _of_hybrids("falcon-h1-ssm", 2, component="recurrent"),
    _of_hybrids("falcon-h1-attention", 2, component="attention"),
    _of_hybrids("qwen3.5-mixer", 2, component="recurrent"),
    _of_hybrids("qwen3.5-blocks", 2, component="recurrent-blocks"),
    _of_hybrids("qwen2.5-control", 2, fraction=0.33),
)


@drafting_method(
    "layer-skip",
    summary=(
        "Self-speculation: the draft is the target itself with some blocks left out, or with one part of its blocks."
    ),
    source=(
        "Draft & Verify (arXiv 2309.08168), LayerSkip (arXiv 2404.16710), SWIFT (arXiv 2410.06916); for the parts of "
        "hybrids arXiv 2605.01106"
    ),
    presets=PRESETS,
    space={
        "gamma": Range(low=1, high=8),
        "fraction": Values(
            values=(0.1, 0.2, 0.33, 0.45), unless=("keep", "skip", "exit", "exit_share", "component", "preset")
        ),
    },
)
class LayerSkipOptions(MethodOptions, frozen=True, kw_only=True):
    """Options of self-speculation. Blocks are written ``3+5+8-11``; at most one of keep, skip, exit, fraction."""

    mode: Annotated[
        Literal["own", "sync"],
        Meta(description="own memory, or the target's"),
    ] = "sync"
    keep: Annotated[str | int | None, Meta(description="blocks that stay")] = None
    skip: Annotated[str | int | None, Meta(description="blocks left out")] = None
    exit: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="the first so many blocks stay")] = None
    exit_share: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="the first blocks, as a share of all")
    ] = None
    fraction: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None, Meta(description="share of blocks left out, spread evenly")
    ] = None
    component: Annotated[Component | None, Meta(description="only this part of a hybrid's blocks")] = None
    p_min: Annotated[
        Probability,
        Meta(description="a likeliest token below it (softmax) ends the draft, as in SWIFT (0.8); 0: never"),
    ] = 0.0
    p_min_mode: EarlyStopMode = "include"

    @property
    def early_stop(self) -> EarlyStop:
        return EarlyStop(p_min=self.p_min, p_min_mode=self.p_min_mode)

    def open(self, setup: DrafterSetup) -> ChainDrafter:
        """The draft in its mode; `sync` falls back to `own`, and says so, where it cannot be."""
        cut = self.made_draft(Source(setup.target_path))
        synced = None if self.mode == "own" else _synced(setup, cut)
        if isinstance(synced, SharedMemory):
            memory: OwnMemory = synced
        else:
            refuse_missing_kernel(cut.n_experts, backend_info(setup.opening.options.n_gpu_layers).backend)
            memory = open_memory(setup, chain_context(setup.opening, self.early_stop), n_experts=cut.n_experts)
        weight = source_weight(Source(setup.second))
        n_used = weight.n_experts_used if cut.n_experts is None else cut.n_experts
        memory.pass_bytes = msgspec.structs.replace(weight, n_experts_used=n_used).active.n_bytes
        drafter = ChainDrafter(memory, setup.chain(self.early_stop))
        drafter.fell_back = synced if isinstance(synced, str) else None
        return drafter

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        """Target and draft with a second sequence through which memory is copied; or a draft by itself."""
        if self.mode == "own":
            return opening.with_draft(chain_context(opening, self.early_stop))
        draft = chain_context(opening, self.early_stop, rolls_back=False)
        target, options = (msgspec.structs.replace(side, n_sequences=2) for side in (opening.target, draft.options))
        return opening.with_draft(msgspec.structs.replace(draft, options=options), target)

    def made_draft(self, target: Source) -> CutDraft:
        return plan(target, self)

    def drafting_part(self) -> dict[str, OptionValue] | None:
        """What decides which weights draft: mode and threshold do not."""
        other = ("mode", "p_min", "p_min_mode")
        options = msgspec.structs.asdict(self)
        return {name: value for name, value in options.items() if name not in other and value is not None}


class CutDraft(MadeDraft, frozen=True, kw_only=True):
    """A target and what is left of it in the draft."""

    component: Component | None
    n_experts: int | None = None  # routed experts of a layer that the draft uses; None: as many as the target


class SharedMemory(OwnMemory):
    """The draft never reads a prompt and never rolls back: each round its memory is replaced.

    The copy counts as rollback, which it replaces.
    """

    counted = (*OwnMemory.counted, "sync_ns")

    def __init__(self, context: LlamaContext, link: StateLink, clock: Clock) -> None:
        super().__init__(context, Rollback("sync", context), clock)
        self._link = link

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the last text; the target's memory of the prompt comes with the first proposal."""
        self._link.reset()
        self._forget(prompt)

    def news(self) -> list[int]:
        started_ns = self._now()
        self._link.pull()
        sync_ns = self._now() - started_ns
        self.tally["sync_ns"] += sync_ns
        self.rollback_ns += sync_ns
        return super().news()

    def observe(self, verification: Verification) -> None:
        self._take_in(verification.committed)

    def stats(self) -> dict[str, float]:
        """Draft passes, and time and bytes of the copies, which stand in place of a rollback."""
        passes = {name: value for name, value in super().stats().items() if name != "draft_rollback_ns"}
        return {**passes, "sync_bytes": float(self._link.n_bytes)}


def refuse_missing_kernel(n_experts: int | None, backend: str) -> None:
    """Refuse a draft of so many experts that reads prompts where that aborts the process. Raises: UnsupportedError."""
    if backend == "Metal" and n_experts is not None and n_experts not in METAL_EXPERT_COUNTS:
        counts = ", ".join(map(str, METAL_EXPERT_COUNTS))
        raise UnsupportedError(
            f"A draft with {n_experts} routed experts cannot read a prompt on Metal: llama.cpp has kernels there for "
            f"{counts} experts only, and aborts at a prompt of 32 tokens or more.",
            hint=f"Give experts={max(n for n in METAL_EXPERT_COUNTS if n <= n_experts)}, or mode=sync where the "
            "draft can work on the target's memory.",
        )


def plan(source: Source, options: LayerSkipOptions, n_experts: int | None = None) -> CutDraft:
    """The draft that the options describe; it must be smaller than the target. Raises: InputError, ModelFileError."""
    n_layers = trunk_layers(source) or 0
    exit_after = options.exit
    if options.exit_share is not None:
        if exit_after is not None:
            raise InputError("exit and exit_share exclude each other.", hint="Give one of them.")
        exit_after = -int(-options.exit_share * n_layers // 1)  # rounded up, as the study does
    layers = choose_layers(
        n_layers,
        keep=None if options.keep is None else read_layers(str(options.keep)),
        skip=None if options.skip is None else read_layers(str(options.skip)),
        exit_after=exit_after,
        fraction=options.fraction or None,
    )
    part = options.component
    if len(layers) == n_layers and part is None:
        if n_experts is None:
            presets = ", ".join(preset.name for preset in PRESETS)
            raise InputError(
                "The draft would be the whole target.",
                hint=f"Give skip, keep, exit, fraction, component, or one of the presets {presets}.",
            )
        edit = Edit(pieces=(), layers=layers)
    else:
        edit = plan_cut(source, layers, part)
    recipe = f"{part} {layers}"
    return CutDraft(source=source, edit=edit, kind="cut", recipe=recipe, component=part, n_experts=n_experts)


def _synced(setup: DrafterSetup, cut: CutDraft) -> SharedMemory | str:
    """The memory of a draft on the target's, or why there can be none."""
    try:
        with open_second(setup, setup.draft, cut.n_experts) as context:
            link = StateLink(setup.target, context, link_plan(cut, has_axes=setup.target.has_position_axes))
            link.self_test()
            return SharedMemory(context, link, setup.clock)
    except BlobError as error:
        return error.message


def link_plan(cut: CutDraft, *, has_axes: bool) -> LinkPlan:
    """Which memory of the target is the draft's."""
    layers = cut.edit.layers
    attention, state = attention_layers(cut.source), state_layers(cut.source)
    draft_attention = [layer for layer in layers if layer in attention]
    draft_state = [layer for layer in layers if layer in state]
    one_head = cut.source.architecture == "falcon-h1" and cut.component in ("recurrent", "recurrent-blocks")
    intact = _last_intact(cut, attention)

    def shape(n_attention: int, n_state: int, n_blocks: int) -> BlobShape:
        return BlobShape(n_attention=n_attention, n_state=n_state, n_blocks=n_blocks, has_axes=has_axes)

    return LinkPlan(
        target=shape(len(attention), len(state), trunk_layers(cut.source) or 0),
        draft=shape(len(draft_attention), len(draft_state), len(layers)),
        attention=tuple(attention.index(layer) for layer in draft_attention),
        state=tuple(state.index(layer) for layer in draft_state),
        shares_attention=not one_head,
        own_attention=bool(draft_attention) and draft_attention[0] <= intact,
        own_state=bool(draft_state) and draft_state[0] <= intact,
    )


def _last_intact(cut: CutDraft, attention: Sequence[int]) -> int:
    """The last block of the draft whose input is the target's own; -1 for none."""
    n_first = next((i for i, layer in enumerate(cut.edit.layers) if layer != i), len(cut.edit.layers))
    if cut.n_experts is not None:  # the first block's own memory is still the target's
        n_first = min(n_first, 1)
    if cut.component is None:
        return n_first - 1
    return min(n_first - 1, 0 if cut.component == "attention" else attention[0])

"""Drafting methods, one file a method, behind a written table.

A method's module has `make(bench) -> Drafter` and, where it takes any, `OPTIONS` and `PRESETS` (see `options`).
A `fill_in(spec)` beside them gives values that only a look at a file can (its content), and refuses a missing one.
Where it needs a special target context it also has `target_options(options, spec, gamma, rollback) -> SessionOptions`;
it may raise UnsupportedError there. `check_target(spec, path)` refuses a target by its file alone,
`check_draft(spec, target, draft)` a draft that does not fit it. Modules are imported only when their method is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mlsd.clock import Clock
from mlsd.drafters.options import PRESET, Choice, Space, Span, find_preset, read_options
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.session import Session, SessionOptions
from mlsd.errors import UnsupportedError
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, DrafterSpec, Sampling

# name -> module under mlsd.drafters
METHODS: dict[str, str] = {
    DRAFT_MODEL: "draft_model",
    "dflash": "heads.dflash",
    "draft-tree": "draft_tree",
    "eagle3": "heads.eagle3",
    "eagle3-tree": "heads.eagle3_tree",
    "kangaroo": "layer_skip.kangaroo",
    "lookahead": "lookup.lookahead",
    "layer-skip": "layer_skip.subset",
    "mtp": "heads.mtp",
    "ngram-cache": "lookup.ngram_cache",
    "pld": "lookup.pld",
    "rest": "lookup.rest",
}

_NO_HEADS = "llama.cpp has no graph for {}, so no GGUF of one can be loaded"
# Methods of the literature that cannot run here -> why, and what comes closest.
UNAVAILABLE: dict[str, tuple[str, str]] = {
    "medusa": (_NO_HEADS.format("parallel Medusa heads"), "mtp drafts with a model's own next-token block."),
    "hydra": (_NO_HEADS.format("sequential Hydra heads"), "mtp drafts with a model's own next-token block."),
    "eagle": (_NO_HEADS.format("EAGLE heads of the first kind"), "llama.cpp knows the third kind: eagle3."),
    "eagle2": (_NO_HEADS.format("EAGLE-2 heads"), "Its tree policy runs over others: draft-tree and eagle3-tree."),
}

_GAMMAS = Span(low=1, high=16)


@dataclass(frozen=True)
class DrafterBench:
    """What a method may use to build its drafter."""

    spec: DrafterSpec
    gamma: int
    sampling: Sampling
    clock: Clock
    target: Session  # the session whose output is drafted
    target_path: Path
    target_rollback: str  # strategy in use for the target; only "trim" (attention memory) can hold trees
    draft_path: Path | None  # the second model, where the spec names one
    options: SessionOptions  # threads, layers, context and checking shared by all contexts of the arm
    open_model: Callable[[Path], Any]  # loaded models by path, each loaded once; closed by the owner of the bench
    draft_rollback: Callable[[Path], str]  # strategy that the probe found exact for a draft with this file


def method_module(name: str) -> Any:
    """The module of a drafting method.

    Raises: UnsupportedError for an unknown name, with the names that exist.
    """
    if name in UNAVAILABLE:
        why, instead = UNAVAILABLE[name]
        raise UnsupportedError(f"{name} is not available in llama.cpp: {why}.", hint=instead)
    if name not in METHODS:
        raise UnsupportedError(
            f"There is no drafting method {name!r}.", hint=f"Known methods: {', '.join(sorted(METHODS))}."
        )
    return importlib.import_module(f"mlsd.drafters.{METHODS[name]}")


def make_drafter(bench: DrafterBench) -> Drafter:
    """The drafter that `bench.spec` asks for."""
    if bench.spec.name == NO_DRAFTER:
        return NoDrafter()
    drafter: Drafter = method_module(bench.spec.name).make(bench)
    return drafter


def target_options(options: SessionOptions, spec: DrafterSpec, gamma: int, rollback: str) -> SessionOptions:
    """The target's session options as the method needs them, with the target rolled back by the strategy `rollback`.

    Raises: UnsupportedError when the method cannot work on such a target.
    """
    if spec.name == NO_DRAFTER:
        return options
    adjust = getattr(method_module(spec.name), "target_options", None)
    adjusted: SessionOptions = adjust(options, spec, gamma, rollback) if adjust else options
    return adjusted


def resolve_spec(spec: DrafterSpec) -> DrafterSpec:
    """`spec` with its preset written out, so that equal settings are equal specs; every option is checked.

    Raises: UnsupportedError for an unknown method, InputError for an option that cannot be.
    """
    if spec.name == NO_DRAFTER:
        return spec
    module = method_module(spec.name)
    presets = getattr(module, "PRESETS", {})
    read_options(spec, getattr(module, "OPTIONS", _NoOptions), presets)
    preset = find_preset(spec, presets)
    values = {**(preset.values if preset else {}), **spec.options}
    if hasattr(module, "fill_in"):
        values |= module.fill_in(spec)
    values.pop(PRESET, None)
    return msgspec.structs.replace(spec, options=values)


def preset_gamma(spec: DrafterSpec) -> int | None:
    """The gamma of the preset that `spec` names; None when it names none."""
    preset = find_preset(spec, getattr(method_module(spec.name), "PRESETS", {}))
    return None if preset is None else preset.gamma


def search_space(spec: DrafterSpec) -> dict[str, Span | Choice]:
    """What may be searched of a method, gamma included: its space without what `spec` gives.

    Raises: UnsupportedError for an unknown method.
    """
    space: Space = {"gamma": _GAMMAS, **getattr(method_module(spec.name), "SPACE", {})}
    return {name: span for name, span in space.items() if not spec.options.keys() & {name, *span.unless}}


def loads_next_token_block(spec: DrafterSpec) -> bool:
    """Whether the target must be loaded with its own next-token block."""
    return spec.name != NO_DRAFTER and getattr(method_module(spec.name), "LOADS_NEXT_TOKEN_BLOCK", False)


def check_target(spec: DrafterSpec, target_path: Path, draft_path: Path | None = None) -> None:
    """Ask the method whether it can serve the target in that file with that draft, before any model is loaded.

    Raises: what the method raises, like InputError for a block that the model does not have.
    """
    if spec.name == NO_DRAFTER:
        return
    module = method_module(spec.name)
    if hasattr(module, "check_target"):
        module.check_target(spec, target_path)
    if draft_path is not None and hasattr(module, "check_draft"):
        module.check_draft(spec, target_path, draft_path)


class _NoOptions(msgspec.Struct, frozen=True):
    """A method that takes no options."""

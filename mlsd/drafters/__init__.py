"""Drafting methods by name, each a class in a file that is imported only when it is used."""

import dataclasses
import importlib
from pathlib import Path

import msgspec

from mlsd.drafters import user_methods
from mlsd.drafters.adaptive import Adaptive
from mlsd.drafters.method import REGISTERED, DrafterSetup, Method, MethodOptions, Unavailable, drafting_method
from mlsd.drafters.options import PRESET, Range, Values
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.errors import InputError, UnsupportedError, choose
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import state_layers
from mlsd.methods import METHODS
from mlsd.records import NO_DRAFTER, DrafterSpec, content_id

# Methods of the literature that cannot run here -> why, and what comes closest.
UNAVAILABLE = {
    name: Unavailable(
        name=name,
        reason=f"llama.cpp has no graph for {heads}, so no GGUF of one can be loaded",
        instead=instead,
    )
    for name, heads, instead in (
        ("medusa", "parallel Medusa heads", "mtp drafts with a model's own next-token block."),
        ("hydra", "sequential Hydra heads", "mtp drafts with a model's own next-token block."),
        ("eagle", "EAGLE heads of the first kind", "llama.cpp knows the third kind: eagle3."),
        ("eagle2", "EAGLE-2 heads", "Its tree policy runs over others: draft-tree and eagle3-tree."),
    )
}


@drafting_method(NO_DRAFTER, summary="Plain decoding.", source="")
class Plain(MethodOptions, frozen=True, kw_only=True):
    """A method that takes no options."""

    def open(self, setup: DrafterSetup) -> Drafter:
        return NoDrafter()


_GAMMAS = Range(low=1, high=16)


def find_method(name: str) -> Method:
    """The drafting method of that name, or of a class in a file, which then has the name of its content.

    Raises: UnsupportedError with the names that exist, InputError for a file that cannot be used.
    """
    if user_methods.is_typed(name):
        return user_methods.load(name)
    if name in UNAVAILABLE:
        missing = UNAVAILABLE[name]
        raise UnsupportedError(f"{name} is not available in llama.cpp: {missing.reason}.", hint=missing.instead)
    if name in METHODS:
        importlib.import_module(f"mlsd.drafters.{METHODS[name].module}")
    if name not in REGISTERED:
        of_file = f"Name the file that it is in: --drafter {user_methods.as_typed(name)}."
        hint = choose(name, sorted(METHODS)) if user_methods.as_typed(name) == name else of_file
        raise UnsupportedError(f"There is no drafting method {name!r}.", hint=hint)
    return REGISTERED[name]


def open_drafter(setup: DrafterSetup) -> Drafter:
    """The drafter that an arm asks for, which `check_target` has let through. Raises: what the method raises."""
    spec = setup.opening.case.drafter
    method = find_method(spec.name)
    drafter, least = method.read(spec).open(setup), method.length(spec).adaptive
    return Adaptive(drafter, least, setup.opening.case.gamma) if least else drafter


def recipe(opening: Opening) -> tuple[ContextPlan, ...]:
    """The contexts that an arm opens, the target's first. Raises: UnsupportedError for a target that cannot serve."""
    method = find_method(opening.case.drafter.name)
    if method.chains_instead is not None and opening.rollback != "trim":
        raise UnsupportedError(
            f"{method.name} drafts trees, so it needs a target with attention memory only; this one is rolled back by "
            f"{opening.rollback!r}.",
            hint=method.chains_instead,
        )
    if method.needs == "head" and opening.rollback == "unchecked":
        raise UnsupportedError(
            f"{method.name} reads the target's rows, which a failed pass does not produce.",
            hint="Use --rollback auto, or draft-model to show what unchecked rollback does.",
        )
    return method.read(opening.case.drafter).contexts(dataclasses.replace(opening, kind=method.target_kind))


def check_target(spec: DrafterSpec, target_path: Path, second_path: Path | None = None) -> None:
    """Ask the method, before any load, whether it can serve that target. Raises: MlsdError with the reason."""
    method = find_method(spec.name)
    chosen = method.read(spec)
    if method.needs is not None and spec.draft is None:
        raise InputError(f"The {method.name} method needs a {method.needs}.", hint="Name its GGUF with --draft.")
    if method.has("check_target"):
        chosen.check_target(Source(target_path))
    if method.has("made_draft"):
        chosen.made_draft(Source(target_path))
    if method.chains_instead is not None and state_layers(Source(target_path)):
        raise UnsupportedError(
            f"{method.name} needs a target with attention memory only, because it verifies trees; {target_path.name} "
            "has recurrent layers.",
            hint=method.chains_instead,
        )
    if second_path is not None and method.has("check_second"):
        chosen.check_second(Source(target_path), Source(second_path))


def resolve_spec(spec: DrafterSpec) -> DrafterSpec:
    """`spec` with its preset written out, so that equal settings are equal specs; every option is checked.

    Raises: UnsupportedError for an unknown method, InputError for an option that cannot be.
    """
    method = find_method(spec.name)
    preset = method.preset(spec)
    values = {**(preset.options if preset else {}), **spec.options, **method.read(spec).fill_in()}
    values.pop(PRESET, None)
    return msgspec.structs.replace(spec, options=values)


def preset_gamma(spec: DrafterSpec) -> int | None:
    """The gamma of the preset that `spec` names; None when it names none."""
    preset = find_method(spec.name).preset(spec)
    return None if preset is None else preset.gamma


def search_space(spec: DrafterSpec) -> dict[str, Range | Values]:
    """What may be searched of a method, gamma included: its space without what `spec` gives."""
    space = find_method(spec.name).space
    return {"gamma": _GAMMAS} | {
        name: span for name, span in space.items() if not spec.options.keys() & {name, *span.unless}
    }


def drafting_key(spec: DrafterSpec) -> str | None:
    """Equal for two specs on one target exactly when the same model drafts; None where no model of its own does."""
    method = find_method(spec.name)
    if method.needs == "head":  # it has no distribution without the target's rows
        return None
    if spec.draft is not None:
        return spec.draft.sha256 or f"id:{spec.draft.id}"
    part = method.read(spec).drafting_part()
    return None if part is None else content_id(msgspec.structs.replace(spec, options=part))


def drafting_file(spec: DrafterSpec, target_path: Path) -> Path | None:
    """The file of the model that drafts out of the target itself, made if need be; None where there is none."""
    return second_file(spec, target_path) if drafting_key(spec) is not None else None


def second_file(spec: DrafterSpec, target_path: Path, draft_path: Path | None = None) -> Path | None:
    """The file beside the target's that an arm loads: the draft or head that was given, or one made of the target."""
    method = find_method(spec.name)
    if draft_path is not None or not method.has("made_draft"):
        return draft_path
    return method.read(spec).made_draft(Source(target_path)).file()

"""What a person asks to be measured, its names resolved: a request is made once, and never edited on its way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from mlsd.drafters import check_target, find_method, resolve_spec
from mlsd.drafters.options import parse_drafter
from mlsd.errors import InputError
from mlsd.models.library import LocalModel, check_model, resolve_model
from mlsd.planning.default_arms import DefaultArms, default_arms
from mlsd.planning.plan import AS_WRITTEN, Overrides, Setting
from mlsd.planning.prompts import Prompt, find_prompt
from mlsd.planning.tasks import Task
from mlsd.records import AUTO, DRAFT_MODEL, GAMMA, NO_DRAFTER, DrafterSpec, Record

MOST_BLOCKS = 100  # of a session that nothing decides

T = TypeVar("T", LocalModel, Prompt)


class StudyRequest(Record, frozen=True, kw_only=True):
    """Suites to plan or to run."""

    suites: tuple[str, ...]  # A to G, or paths of TOML files
    profile: str | None = None  # name or TOML file; None: the largest that is downloaded, else the embedded one
    overrides: Overrides = AS_WRITTEN
    models: dict[str, str] = msgspec.field(default_factory=dict)  # role -> id or path, in place of the profile's
    tasks: tuple[Task, ...] = ()  # in place of prompts, by Spec-Bench's protocol


class Goal(Record, frozen=True, kw_only=True):
    """When a session has measured enough."""

    within: float | None = None  # the best known to this share, too; None: each arm decided or out
    budget_s: float | None = None  # no block begins that would end after it


class BenchRequest(Setting, frozen=True, kw_only=True):
    """One target to measure with every method beside plain decoding; `bench_request` makes one from names.

    Without `gammas` a method has its preset's, else 1, 2, 4, 8, 16.
    """

    n_predict: int = 256
    target: LocalModel
    drafters: tuple[DrafterSpec, ...] = ()
    models: tuple[LocalModel, ...] = ()  # the second files of `drafters`
    prompts: tuple[Prompt, ...]
    repeats: int = 3
    goal: Goal | None = None  # as many blocks as it takes, in place of `repeats`; arms drop out that cannot win
    suite: str = "bench"  # what its cases are filed under
    default_arms: DefaultArms | None = None  # where nobody chose a method

    def __post_init__(self) -> None:
        """Refuse methods that cannot work on this target. Raises: UnsupportedError, InputError, ModelFileError."""
        paths, known = {model.ref: model.path for model in self.models}, list[DrafterSpec]()
        for given in self.drafters:
            spec = resolve_spec(given)
            check_target(spec, self.target.path, None if spec.draft is None else paths[spec.draft])
            if spec in known:
                raise InputError(f"{spec.name} is asked for twice with the same options.", hint="Name it once.")
            known.append(spec)


def bench_request(
    target: str,
    *,
    drafts: Sequence[str] = (),
    drafters: Sequence[str | DrafterSpec] | None = (),
    prompts: Iterable[str] = ("code",),
    depths: Iterable[int] = (0,),
    **asked: Any,
) -> BenchRequest:
    """A request from names: models are GGUF paths or ids, those that are made locally made now.

    `drafts` are draft models, or second files of the `drafters` that take one; a drafter is NAME:option=value,... and
    may name its own with the option `draft`; None: what `default_arms` finds. `prompts` are shipped ones by name, or
    text files, each behind `depths` tokens of other text. `asked` are further fields of `BenchRequest`.

    Raises: UnsupportedError, InputError, PromptError, ManifestError, ModelFileError; what names alone show comes before
    a hash or a file to make.
    """
    named = [f"{name}@{depth}" if depth else name for name in prompts for depth in depths]
    found = each_once("prompts", [(prompt.key, prompt) for prompt in map(find_prompt, named)])
    chosen = [_own_draft(parse_drafter(one) if isinstance(one, str) else one) for one in drafters or ()]
    for spec, _ in chosen:
        resolve_spec(spec)
    for name in (target, *drafts, *(own for _, own in chosen if own is not None)):
        check_model(name)
    model, default = resolve_model(target, make=True), None
    if drafters is None:
        default = default_arms(model)
        drafts, chosen = default.drafts, [(DrafterSpec(name=name), None) for name in default.drafters]
    specs, files = _with_drafts(chosen, [resolve_model(name, make=True) for name in drafts])
    each_once("models", [(one.ref.id, one) for one in (model, *files)])
    if AUTO in (gammas := asked.get("gammas") or ()):  # chosen round by round: beside numbers each method stands twice
        auto = [msgspec.structs.replace(spec, options={**spec.options, GAMMA: AUTO}) for spec in specs]
        specs = auto if set(gammas) == {AUTO} else [*specs, *auto]
    return BenchRequest(
        target=model,
        drafters=tuple(specs),
        models=tuple({one.ref: one for one in files}.values()),
        prompts=tuple(found.values()),
        default_arms=default,
        **asked,
    )


def _own_draft(spec: DrafterSpec) -> tuple[DrafterSpec, str | None]:
    """A method that takes a second file without its option `draft`, and what that names."""
    if find_method(spec.name).needs is None or "draft" not in spec.options:
        return spec, None
    options = {name: value for name, value in spec.options.items() if name != "draft"}
    return msgspec.structs.replace(spec, options=options), str(spec.options["draft"])


def _with_drafts(
    chosen: Iterable[tuple[DrafterSpec, str | None]], drafts: Sequence[LocalModel]
) -> tuple[list[DrafterSpec], list[LocalModel]]:
    """Every method with each draft that it takes, and all these; drafts that no method takes are draft models."""
    specs, files = list[DrafterSpec](), list[LocalModel]()
    chosen = [(spec, own) for spec, own in chosen if spec.name != NO_DRAFTER]
    if drafts and not any(find_method(spec.name).needs and own is None for spec, own in chosen):
        chosen.insert(0, (DrafterSpec(name=DRAFT_MODEL), None))
    for spec, own in chosen:
        needed = find_method(spec.name).needs
        if needed is None:
            specs.append(spec)
            continue
        taken = drafts if own is None else [resolve_model(own, make=True)]
        if not taken:
            raise InputError(f"The {spec.name} method needs a {needed}.", hint="Name one with --draft.")
        specs += [msgspec.structs.replace(spec, draft=draft.ref) for draft in taken]
        files += taken
    return specs, files


def each_once(what: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """By name, each once. Raises: InputError for two different ones of one name."""
    found: dict[str, T] = {}
    for name, one in named:
        if found.setdefault(name, one).ref != one.ref:
            raise InputError(f"Two different {what} are called {name!r}.", hint="Rename one of the files.")
    return found

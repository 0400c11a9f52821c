"""A drafting method as one class: what a user may set of it, what it needs of target and draft, how it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from mlsd.clock import Clock
from mlsd.drafters.adaptive import Length
from mlsd.drafters.chain import Chain, EarlyStop
from mlsd.drafters.options import PRESET, OptionInfo, Preset, Space, describe_options
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.engine.context import Context, ContextKind
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.errors import InputError, choose, did_you_mean
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import MadeDraft
from mlsd.outside import convert
from mlsd.records import NO_DRAFTER, DrafterSpec, OptionValue, Record

T = TypeVar("T")
Read = Callable[[Context, Sequence[int]], object]  # how a prompt comes into a context


@dataclass(frozen=True)
class DrafterSetup:
    """What is there when a drafter is opened: its target, ready, and the means to open models beside it."""

    opening: Opening
    contexts: tuple[ContextPlan, ...]  # what the arm opens, the target's first, which is open
    clock: Clock
    target: LlamaContext  # the context whose output is drafted
    target_path: Path
    second_path: Path | None  # the file of the draft or head, where the method has one
    # Models by path and routed experts used (absent: what the file says), loaded once; closed by the setup's owner.
    open_model: Callable[..., Any]
    plain: Callable[[Sequence[int]], Sequence[int]]  # the target's plain greedy output after a prompt, for controls
    # Brings a prompt into the memory of a draft; by default by decoding it.
    read: Read = lambda context, tokens: context.decode(tokens, n_outputs=0)

    @property
    def second(self) -> Path:
        """The second file of a method that needs one; without it such a method is never opened."""
        assert self.second_path is not None
        return self.second_path

    @property
    def draft(self) -> ContextPlan:
        return next(context for context in self.contexts if context.whose == "draft")

    def chain(self, stop: EarlyStop | None = None, *, n_vocab: int | None = None) -> Chain:
        return Chain(self.clock, self.opening.case.sampling, stop, n_vocab=n_vocab)


class MethodOptions(Record, frozen=True, kw_only=True):
    """What may be set of a drafting method (its fields, each of which says what it means), and what the method does.

    A method is a subclass; all of its hooks but `open` run before any model is loaded.
    """

    def open(self, setup: DrafterSetup) -> Drafter:
        raise NotImplementedError

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        """What its arms open, the target's context first."""
        return opening.on_target()

    def check_target(self, target: Source) -> None:
        """Refuse a target that cannot be served."""

    def check_second(self, target: Source, second: Source) -> object:
        """Refuse a second file that does not fit the target."""

    def fill_in(self) -> dict[str, OptionValue]:
        """Values that only a look at a file can give."""
        return {}

    def made_draft(self, target: Source) -> MadeDraft:
        """Of a method whose draft is made of its target: the draft, or the reason against it."""
        raise NotImplementedError

    def drafting_part(self) -> dict[str, OptionValue] | None:
        """The options that decide the weights of that draft; None where it has no file of its own."""
        return None

    def head(self, target: Any, model: Any) -> Any:
        """Of a method with a head: its context beside the target's context, from the model that holds it."""
        raise NotImplementedError


Registered = TypeVar("Registered", bound=type[MethodOptions])
REGISTERED: dict[str, Method] = {}


def drafting_method(name: str, **facts: Any) -> Callable[[Registered], Registered]:
    """Register a method under its name, with its other facts (the fields of `Method`)."""

    def register(options: Registered) -> Registered:
        REGISTERED[name] = Method(name=name, options=options, **facts)
        return options

    return register


@dataclass(frozen=True, kw_only=True)
class Method:
    """A drafting method, as it is listed and searched."""

    name: str
    summary: str
    source: str  # who published it, where
    options: type[MethodOptions]
    presets: tuple[Preset, ...] = ()
    space: Space = field(default_factory=dict)  # what `mlsd search` searches; gamma is searched in any case
    needs: Literal["draft", "head"] | None = None  # the file that must be named: a model, or a head over target rows
    takes_draft: bool = False  # a draft may be named with the option `draft`, and need not be
    target_kind: ContextKind = "plain"  # of the target
    loads_next_token_block: bool = False  # of the target's own file
    chains_instead: str | None = None  # of a method that drafts trees only: who drafts chains where memory holds none

    def has(self, hook: str) -> bool:
        """Whether it brings that hook of `MethodOptions`: without `made_draft`, its draft is not made of the target."""
        return getattr(self.options, hook) is not getattr(MethodOptions, hook)

    def preset(self, spec: DrafterSpec) -> Preset | None:
        """The preset that `spec` names, or None when it names none. Raises: InputError for an unknown name."""
        name, presets = spec.options.get(PRESET), {preset.name: preset for preset in self.presets}
        if name is None:
            return None
        if str(name) not in presets:
            hint = choose(str(name), list(presets)) if presets else f"{self.name} has no presets."
            raise InputError(f"{self.name} has no preset {name!r}.", hint=hint)
        return presets[str(name)]

    def read(self, spec: DrafterSpec) -> MethodOptions:
        """The options of a spec: defaults, then its preset's values, then its own. Raises: InputError."""
        preset = self.preset(spec)
        self.length(spec)
        given = {name: value for name, value in spec.options.items() if name not in (PRESET, *self._shared)}
        for name in given:
            if name not in self.options.__struct_fields__:
                hint = did_you_mean(name, self.options.__struct_fields__) + self._help()
                raise InputError(f"{self.name} has no option {name!r}.", hint=hint)
        for field_ in msgspec.structs.fields(self.options):
            if field_.required and field_.name not in given:
                raise InputError(f"{self.name} needs the option {field_.name}.", hint=self._help())
        return self._convert({**(preset.options if preset else {}), **given}, self.options)

    def length(self, spec: DrafterSpec) -> Length:
        """What a spec says of the length of its drafts. Raises: InputError."""
        return self._convert({name: spec.options[name] for name in self._shared if name in spec.options}, Length)

    @property
    def _shared(self) -> tuple[str, ...]:
        """Options that it has in common with others: how many candidates a tree has is the tree's own."""
        return Length.__struct_fields__ if self.chains_instead is None and self.name != NO_DRAFTER else ()

    def _convert(self, values: Mapping[str, OptionValue], kind: type[T]) -> T:
        return convert(values, kind, self.name, hint=self._help())

    def _help(self) -> str:
        fields = [
            each.name if each.required else f"{each.name} ({_plain(each.default)})"
            for kind in self._kinds
            for each in msgspec.structs.fields(kind)
        ]
        if not fields:
            return f"{self.name} takes no options."
        tail = f" Presets: {', '.join(preset.name for preset in self.presets)}." if self.presets else ""
        return f"Options of {self.name}, with their defaults: {', '.join(fields)}.{tail}"

    @property
    def _kinds(self) -> tuple[type[Record], ...]:
        return (self.options, Length) if self._shared else (self.options,)

    def info(self) -> MethodInfo:
        return MethodInfo(
            name=self.name,
            summary=self.summary,
            source=self.source,
            options=tuple(option for kind in self._kinds for option in describe_options(kind)),
            presets=self.presets,
            searched=tuple(dict.fromkeys(("gamma", *self.space))),
        )


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class MethodInfo(Record, frozen=True, kw_only=True):
    """What a user may ask of a method."""

    name: str
    summary: str
    source: str
    options: tuple[OptionInfo, ...]
    presets: tuple[Preset, ...]
    searched: tuple[str, ...]


class Unavailable(Record, frozen=True, kw_only=True):
    """A method of the literature that cannot run here."""

    name: str
    reason: str
    instead: str

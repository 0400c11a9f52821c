"""A drafting method as one record: what a user may set of it, what it needs of target and draft, how it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain, Doubt
from mlsd.drafters.options import PRESET, OptionInfo, Preset, Space, describe_options
from mlsd.drafters.recipe import Context, Opening
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.session import Session, SessionKind
from mlsd.errors import InputError, choose, did_you_mean
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import MadeDraft
from mlsd.records import DrafterSpec, OptionValue, Record

Own = TypeVar("Own", bound=msgspec.Struct)

Read = Callable[[Session, Sequence[int]], object]  # how a prompt comes into a session


@dataclass(frozen=True)
class DrafterSetup:
    """What is there when a drafter is opened: its target, ready, and the means to open models beside it."""

    opening: Opening
    contexts: tuple[Context, ...]  # what the arm opens, the target's first, which is open
    clock: Clock
    target: LlamaSession  # the session whose output is drafted
    target_path: Path
    second_path: Path | None  # the file of the draft or head, where the method has one
    # Models by path and routed experts used (absent: what the file says), loaded once; closed by the setup's owner.
    open_model: Callable[..., Any]
    plain: Callable[[Sequence[int]], Sequence[int]]  # the target's plain greedy output after a prompt, for controls
    # Brings a prompt into the memory of a draft; by default by decoding it.
    read: Read = lambda session, tokens: session.decode(tokens, n_outputs=0)

    @property
    def second(self) -> Path:
        """The second file of a method that needs one; without it such a method is never opened."""
        assert self.second_path is not None
        return self.second_path

    @property
    def draft(self) -> Context:
        return next(context for context in self.contexts if context.whose == "draft")

    def chain(self, doubt: Doubt | None = None, *, n_vocab: int | None = None) -> Chain:
        return Chain(self.clock, self.opening.sampling, doubt, n_vocab=n_vocab)


@dataclass(frozen=True, kw_only=True)
class Method(Generic[Own]):
    """A drafting method. Hooks get its options as they were read; all but `open` run before any model is loaded."""

    name: str
    summary: str
    source: str  # who published it, where
    options: type[Own]  # a record; every field says what it means
    open: Callable[[DrafterSetup, Own], Drafter]
    presets: tuple[Preset, ...] = ()
    space: Space = field(default_factory=dict)  # what `mlsd tune` searches; gamma is searched in any case
    needs: Literal["draft", "head"] | None = None  # the file that must be named: a model, or a head over target rows
    session: SessionKind = "plain"  # of the target
    loads_next_token_block: bool = False  # of the target's own file
    chains_instead: str | None = None  # of a method that drafts trees only: who drafts chains where memory holds none
    # What its arms open, the target's context first; by default that alone.
    contexts: Callable[[Opening, Own], tuple[Context, ...]] = lambda opening, own: opening.on_target()
    check_target: Callable[[Own, Source], object] | None = None  # refuses a target that cannot be served
    check_second: Callable[[Source, Source], object] | None = None  # refuses a second file that does not fit the target
    fill_in: Callable[[Own], dict[str, OptionValue]] | None = None  # values that only a look at a file can give
    # A method whose draft is made of its target: the draft, or the reason against it, and the options that decide its
    # weights.
    made: Callable[[Own, Source], MadeDraft] | None = None
    drafting_part: Callable[[Own], dict[str, OptionValue]] | None = None
    # Opens a head's context beside its target, from the target's session, the model that holds it, and the options.
    head: Callable[[Any, Any, Own], Any] | None = None

    def preset(self, spec: DrafterSpec) -> Preset | None:
        """The preset that `spec` names, or None when it names none. Raises: InputError for an unknown name."""
        name, known = spec.options.get(PRESET), {preset.name: preset for preset in self.presets}
        if name is None:
            return None
        if str(name) not in known:
            hint = choose(str(name), list(known)) if known else f"{self.name} has no presets."
            raise InputError(f"{self.name} has no preset {name!r}.", hint=hint)
        return known[str(name)]

    def read(self, spec: DrafterSpec) -> Own:
        """The options of a spec: defaults, then its preset's values, then its own. Raises: InputError."""
        preset = self.preset(spec)
        given = {name: value for name, value in spec.options.items() if name != PRESET}
        for name in given:
            if name not in self.options.__struct_fields__:
                hint = did_you_mean(name, self.options.__struct_fields__) + self._help()
                raise InputError(f"{self.name} has no option {name!r}.", hint=hint)
        for field_ in msgspec.structs.fields(self.options):
            if field_.required and field_.name not in given:
                raise InputError(f"{self.name} needs the option {field_.name}.", hint=self._help())
        try:
            return msgspec.convert({**(preset.options if preset else {}), **given}, self.options)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$.")
            name = place.rstrip("`")
            value = f" {name}={given[name]!r}:" if name in given else ""
            raise InputError(f"{self.name}:{value} {problem}.", hint=self._help()) from error

    def _help(self) -> str:
        fields = [
            each.name if each.required else f"{each.name} ({_plain(each.default)})"
            for each in msgspec.structs.fields(self.options)
        ]
        if not fields:
            return f"{self.name} takes no options."
        tail = f" Presets: {', '.join(preset.name for preset in self.presets)}." if self.presets else ""
        return f"Options of {self.name}, with their defaults: {', '.join(fields)}.{tail}"

    def info(self) -> MethodInfo:
        return MethodInfo(
            name=self.name,
            summary=self.summary,
            source=self.source,
            options=describe_options(self.options),
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

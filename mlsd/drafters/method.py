"""A drafting method as one record: what a user may set of it, what it needs of target and draft, how it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain, Doubt, StopRule
from mlsd.drafters.options import OptionInfo, Preset, Space, describe_options, read_options
from mlsd.drafters.recipe import Context, Opening
from mlsd.engine.drafter import Drafter
from mlsd.engine.session import Session, SessionKind
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import Edit
from mlsd.records import DrafterSpec, OptionValue, Record

Own = TypeVar("Own", bound=msgspec.Struct)

Read = Callable[[Session, Sequence[int]], object]  # how a prompt comes into a session


@dataclass(frozen=True)
class DrafterSetup:
    """What is there when a drafter is opened: its target, ready, and the means to open models beside it."""

    opening: Opening
    contexts: tuple[Context, ...]  # what the arm opens, the target's first, which is open
    clock: Clock
    target: Session  # the session whose output is drafted
    target_path: Path
    second_path: Path | None  # the file of the draft or head, where the method has one
    # Models by path and routed experts used (absent: what the file says), loaded once; closed by the setup's owner.
    open_model: Callable[..., Any]
    plain: Callable[[Sequence[int]], Sequence[int]]  # the target's plain greedy output after a prompt, for controls
    # Brings a prompt into the memory of a draft; by default by decoding it.
    read: Read = lambda session, tokens: session.decode(tokens, n_outputs=0)
    rule: StopRule | None = None  # where gamma is chosen in every round: what each chain asks

    @property
    def second(self) -> Path:
        """The second file of a method that needs one; without it such a method is never opened."""
        assert self.second_path is not None
        return self.second_path

    @property
    def draft(self) -> Context:
        return next(context for context in self.contexts if context.whose == "draft")

    def chain(self, doubt: Doubt | None = None, *, n_vocab: int | None = None) -> Chain:
        return Chain(self.clock, self.opening.sampling, doubt, n_vocab=n_vocab, rule=self.rule)


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
    # A method whose draft is made of its target: the options that decide its weights, and its file, made if need be.
    drafting_part: Callable[[Own], dict[str, OptionValue]] | None = None
    drafting_file: Callable[[Own, Path], Path] | None = None
    # The same before it is made; without pieces it is the target's own file.
    drafting_edit: Callable[[Own, Source], Edit] | None = None
    # Opens a head's context beside its target, from the target's session, the model that holds it, and the options.
    head: Callable[[Any, Any, Own], Any] | None = None

    def read(self, spec: DrafterSpec) -> Own:
        """The options of a spec of this method. Raises: InputError for one that cannot be."""
        return read_options(spec, self.options, self.presets)

    def info(self) -> MethodInfo:
        """The method for people."""
        return MethodInfo(
            name=self.name,
            summary=self.summary,
            source=self.source,
            options=describe_options(self.options),
            presets=self.presets,
            searched=tuple(dict.fromkeys(("gamma", *self.space))),
        )


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

"""What an arm opens: a list of contexts, written once by its method, for the worker and for planning memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from mlsd.engine.context import ContextKind, ContextOptions
from mlsd.engine.rollback import SAVING, rollback_options
from mlsd.records import Case, Record


class ContextPlan(Record, frozen=True, kw_only=True):
    """One context of an arm. A head is opened beside its target's context, whose options it repeats."""

    whose: Literal["target", "draft", "head"]
    options: ContextOptions
    rollback: str | None = None  # strategy that takes its tokens back; None: none does

    @property
    def saves(self) -> bool:
        return self.rollback in SAVING


@dataclass(frozen=True)
class Opening:
    """What the contexts of an arm depend on, beside the options of its method."""

    case: Case
    rollback: str  # strategy in use for the target; only "trim" (attention memory) can hold trees
    options: ContextOptions  # shared by all of its contexts: threads, layers, length, checking
    draft_rollback: Callable[[], str]  # strategy for the model that drafts; asked where its tokens are taken back
    kind: ContextKind = "plain"  # of the target

    @property
    def target(self) -> ContextOptions:
        """The target's context, before the method says what else it needs of it."""
        wide = rollback_options(self.rollback, self.options, self.case.gamma)
        return msgspec.structs.replace(wide, kind=self.kind)

    def on_target(self, options: ContextOptions | None = None) -> tuple[ContextPlan, ...]:
        return (ContextPlan(whose="target", options=options or self.target, rollback=self.rollback),)

    def with_head(self, options: ContextOptions | None = None) -> tuple[ContextPlan, ...]:
        return (*self.on_target(options), ContextPlan(whose="head", options=options or self.target))

    def with_draft(self, draft: ContextPlan, options: ContextOptions | None = None) -> tuple[ContextPlan, ...]:
        return (*self.on_target(options), draft)


def opening_of(
    case: Case,
    shared: ContextOptions,
    rollback: str,
    draft_rollback: Callable[[], str],
    *,
    device_sampling: bool = True,
) -> Opening:
    """The arm of a case on a load whose contexts share `shared`; `rollback` is the target's strategy."""
    options = msgspec.structs.replace(
        shared,
        max_outputs=case.gamma + 1,
        device_sampling=case.sampling.greedy and device_sampling,
        checked=rollback != "unchecked",
    )
    return Opening(case, rollback, options, draft_rollback)

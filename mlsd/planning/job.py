"""What a worker is told of one load: models, prompts, and the slots in which trials are measured, in order."""

from collections.abc import Iterable
from itertools import groupby
from typing import Literal, NamedTuple

import msgspec

from mlsd.models.library import LocalModel
from mlsd.planning.prompts import Prompt
from mlsd.records import Case, EngineOptions, ModelRef, PromptRef, Record

TrialRole = Literal["study", "baseline"]


class ModelFile(Record, frozen=True, kw_only=True):
    """A model and where its file lies on the machine that runs the job; no path: it is not here."""

    ref: ModelRef
    path: str = ""


def file_of(model: LocalModel) -> ModelFile:
    """A model of this machine, for a job that runs here."""
    return ModelFile(ref=model.ref, path=str(model.path))


class Slot(Record, frozen=True, kw_only=True):
    """One place of a block: the case that is measured there."""

    case: Case
    case_id: str  # `case.id`, computed once
    block: int  # content hash (48 bits) of the block's cases and repeat: the same in every plan that holds this block
    repeat: int
    position: int  # in the block
    role: TrialRole = "study"  # a trial of the study, or the AR arm that SD arms are paired with


class BlockKey(NamedTuple):
    """Which planned block something is of, the same in every plan and run that holds it."""

    number: int
    repeat: int


class Block(Record, frozen=True, kw_only=True):
    """The arms that are measured together, by one process, one after the other; measured, stored and retried whole."""

    slots: tuple[Slot, ...]

    @property
    def key(self) -> BlockKey:
        return BlockKey(self.slots[0].block, self.slots[0].repeat)

    @property
    def case_ids(self) -> set[str]:
        return {slot.case_id for slot in self.slots}

    @property
    def repeat(self) -> int:
        return self.slots[0].repeat


def blocks_of(slots: Iterable[Slot]) -> tuple[Block, ...]:
    """The blocks of slots in their order; those of one block stand together."""
    groups = groupby(slots, lambda slot: (slot.block, slot.repeat))
    return tuple(Block(slots=tuple(own)) for _, own in groups)


class Reference(Record, frozen=True, kw_only=True):
    """The greedy output of the target on one prompt, known from an earlier run."""

    prompt_sha256: str  # of the tokens that it read: a text may be other tokens under another template
    n_predict: int
    tokens: tuple[int, ...]


class Job(Record, frozen=True, kw_only=True):
    """All trials of one load: a target, at most one second model a drafter, and the slots in order."""

    target: ModelFile
    models: tuple[ModelFile, ...] = ()  # drafts, found by the id in the case's drafter
    prompts: dict[str, Prompt]  # by `prompt_key`
    slots: tuple[Slot, ...]
    references: tuple[Reference, ...] = ()
    timed_prefills: tuple[str, ...] = ()  # ids of cases whose prompt was read for its time in an earlier run
    compared_memories: tuple[str, ...] = ()  # ids of cases whose memory was compared in an earlier block
    cool_down_s: float | None = 0.0  # pause between blocks; None: as long as passes are slower than they were
    one_arm: bool = False  # memory is tight: an arm is closed before another one opens
    strict: bool = False  # refuse the whole job when one arm cannot run, before anything is measured
    context_bytes: dict[str, int] = msgspec.field(
        default_factory=dict
    )  # what the contexts of each arm take, by `trials.results.memory_key`; empty: not known
    limit_bytes: int | None = None  # what models may take of the machine

    @property
    def engine(self) -> EngineOptions:
        """The same for all arms."""
        return self.slots[0].case.engine

    @property
    def files(self) -> tuple[ModelFile, ...]:
        return (self.target, *self.models)

    @property
    def refs(self) -> tuple[ModelRef, ...]:
        return tuple(file.ref for file in self.files)

    @property
    def missing(self) -> tuple[ModelRef, ...]:
        """Models that are not on this machine."""
        return tuple(file.ref for file in self.files if not file.path)

    @property
    def cases(self) -> dict[str, Case]:
        return {slot.case_id: slot.case for slot in self.slots}

    @property
    def blocks(self) -> tuple[Block, ...]:
        return blocks_of(self.slots)


def prompt_key(prompt: PromptRef) -> str:
    """The key of a prompt in `Job.prompts`: text and length together."""
    return f"{prompt.sha256}:{prompt.n_tokens}"

"""What crosses to a worker and back: a `Call` of one of its functions in, Events out, all plain serializable data."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from mlsd import errors
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.build.loaded import LoadedLibraries
from mlsd.engine.rollback_choice import Role, RollbackCheck
from mlsd.errors import MlsdError, NativeError
from mlsd.planning.job import ModelFile, Slot
from mlsd.records import Anchors, BackendInfo, DrafterSpec, EngineOptions, ModelRef, Record, Status, Trial
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad
from mlsd.trials.stages import StageTime

SIGN_S = 10.0  # between signs of life of what takes long


class Turn(Record, frozen=True, kw_only=True):
    """What a worker with a job measures next: a block and, where heat is watched, an anchor; or both anchors alone."""

    slots: tuple[Slot, ...] = ()  # of one block; empty: the anchors alone
    one_arm: bool = False  # memory is tight: an arm is closed before another one opens


class Call(Record, frozen=True, kw_only=True):
    """A function for the worker. What it returns, or each thing that it yields, is sent as `Returned`."""

    function: str  # module:name
    arguments: dict[str, msgspec.Raw]  # by name
    # Drafting methods out of files of the user's own, by `mlsd.drafters.user_methods`.
    methods: dict[str, str] = msgspec.field(default_factory=dict)


# What hears signs of life, in a worker: nobody waits for one elsewhere.
progress_sink: ContextVar[Callable[[str], None]] = ContextVar("progress_sink", default=lambda doing: None)


def report_progress(doing: str) -> None:
    """Say what a worker is at, behind passes that are not timed one by one."""
    progress_sink.get()(doing)


class ChosenRollback(Record, frozen=True, kw_only=True):
    """The strategy that an arm gets, None where none is exact."""

    role: Role
    gamma: int
    strategy: str | None


class Probed(Record, frozen=True, kw_only=True):
    """Which rollback strategies are exact for a model, and which one arms get."""

    model: ModelRef
    backend: str
    device: str
    n_ctx: int  # positions of the contexts that were tried
    kernel_noise: float  # largest logit difference between batched and one-by-one decoding of the same tokens
    checks: tuple[RollbackCheck, ...]
    chosen: tuple[ChosenRollback, ...]


class PairJob(Record, frozen=True, kw_only=True):
    """A target, a draft beside it, and the real text that both read."""

    target: ModelFile
    draft: ModelFile | None = None
    engine: EngineOptions = EngineOptions()
    text: str

    def plan(self, command: str) -> dict[str, Any]:
        """What was asked for, as a run records it: models by name and hash, without the text and without a path."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        record |= {role: record[role] and record[role]["ref"] for role in ("target", "draft")}
        record["text"] = hashlib.sha256(self.text.encode()).hexdigest()
        return {"command": command, **record}


class CalibrateJob(PairJob, frozen=True, kw_only=True):
    """Time passes of a target, and of a draft beside it; and see which experts the target chooses."""

    rows: tuple[int, ...] = (*range(1, 34), 48, 64)  # k of T(k)
    depths: tuple[int, ...] = (128,)  # positions in the context before a pass
    windows: tuple[int, ...] = ()  # of consecutive tokens, for expert coverage; empty: do not ask
    n_experts: int = 0  # routed experts of a layer; 0 for a dense target, which has no coverage
    budget_s: float = 120.0  # loading apart, the pass that reaches it is the last one
    precision: float = 0.02  # or timing ends as soon as the 95 % interval of every cell's mean is this narrow, relative
    least_repeats: int = 0  # so many are made whatever the budget says
    seed: int = 0  # of the order of passes


class Passes(Record, frozen=True, kw_only=True, tag=True):
    """The timed passes of one repeat of a calibration; the budget may have cut it short."""

    points: tuple[CalibrationPoint, ...]
    half_width: float | None  # of the widest interval so far, relative; None before three repeats


class Covered(Record, frozen=True, kw_only=True, tag=True):
    """The experts that the target of a calibration chose."""

    coverage: tuple[Coverage, ...] = ()
    loads: tuple[ExpertLoad, ...] = ()


class Spent(Record, frozen=True, kw_only=True, tag=True):
    """What the parts of a calibration took."""

    seconds: dict[str, float]  # by part: load, prefill, passes, rollback, draft, coverage


class DistanceJob(PairJob, frozen=True, kw_only=True):
    """Ask how well a target and its draft predict a text, and how far apart they are there.

    Without `engine.n_ctx` a window, after which both start afresh, has 512 tokens.
    """

    draft: ModelFile
    drafting_key: str  # see `mlsd.drafters.drafting_key`
    n_tokens: int | None = None  # at most so many of the text's tokens; None: all


class LayersFound(Record, frozen=True, kw_only=True):
    """The blocks to leave out, and what a draft without them gets accepted on a part of the text not searched on."""

    skipped: tuple[int, ...]
    acceptance_rate: float
    uniform: tuple[int, ...]  # as many blocks, spread evenly
    uniform_acceptance_rate: float
    n_candidates: int  # sets of blocks tried
    search_ns: int

    @property
    def drafter(self) -> str:
        """The method that drafts with these blocks left out and is timed."""
        return "layer-skip:mode=sync,skip=" + "+".join(map(str, self.skipped))


class BreakdownJob(PairJob, frozen=True, kw_only=True):
    """Profile passes of a target, and a draft step beside them: the share of each part of the network."""

    drafter: DrafterSpec = DrafterSpec()  # a method whose draft network is cut out of the target
    rows: tuple[int, ...]  # positions of the target's passes
    depth: int  # positions in the context before a pass
    repeats: int  # turns of plain and profiled passes


class ContextsWanted(Record, frozen=True, kw_only=True):
    """Contexts of one model, or what a method opens beside them; without a path the shape serves."""

    key: str  # equal for equal answers
    path: str | None = None
    shape: str | None = None  # a name of `gguf_tools.shape.FULL`
    method: DrafterSpec | None = None
    head_path: str | None = None  # of a method whose head has a file of its own
    options: tuple[ContextOptions, ...] = ()


class Check(Record, frozen=True, kw_only=True):
    """One question of a self-check, answered."""

    name: str
    subject: str = ""  # the model it was asked of, where it was asked of one
    ok: bool | None  # None: a figure that may be what it likes
    answer: str
    figures: dict[str, float] = msgspec.field(default_factory=dict)


class BuildFits(Record, frozen=True, kw_only=True):
    """A build of llama.cpp that can be measured."""

    backend: BackendInfo
    known_distance: float  # of a pass to the stored one: rms of what differs over the rms spread of the stored logits
    loaded: LoadedLibraries  # the files that it consists of in that process
    memory_version: int  # of the layout in which it writes a sequence's memory
    layout: str  # of its structures: the range of builds that have it, or that of its own bindings
    rollback: str  # the strategy that is exact for the embedded model


class LogitsRead(Record, frozen=True, kw_only=True):
    """The logits before each token of a text."""

    ids: tuple[tuple[int, ...], ...]  # the token itself first, the others from the likeliest down
    logits: tuple[tuple[float, ...], ...]


class Started(Record, frozen=True, kw_only=True, tag=True):
    """A slot begins (warm-up included)."""

    slot: Slot


class Progress(Record, frozen=True, kw_only=True, tag=True):
    """A sign of life inside a slot, between timed regions or at most a few times a second."""

    slot: Slot
    n_tokens: int


class Waiting(Record, frozen=True, kw_only=True, tag=True):
    """A sign of life where nothing is timed pass by pass, or a parent's word that its worker gave none."""

    text: str  # what is waited for, as people read it


class BlockMeasured(Record, frozen=True, kw_only=True, tag=True):
    """What a turn gave: the next one may come."""

    trials: tuple[Trial, ...]  # measured or failed, in the order of its slots
    anchors: Anchors | None = None  # behind the block, of the wide pass alone; None: heat is not watched
    stages: tuple[StageTime, ...] = ()  # where the worker's time went since it started or the block before


class Refused(Record, frozen=True, kw_only=True, tag=True):
    """The job cannot run at all: bad input or a model that does not load."""

    message: str
    hint: str
    kind: str  # class name of the error
    code: int | None = None  # of a NativeError: what the call returned
    log: tuple[str, ...] = ()  # and the lines that explain it

    @staticmethod
    def of(error: MlsdError) -> Refused:
        """What a worker says of an error of its own."""
        refusal = Refused(message=error.message, hint=error.hint, kind=type(error).__name__)
        if isinstance(error, NativeError):
            return msgspec.structs.replace(refusal, code=error.code, log=error.log)
        return refusal

    def error(self) -> MlsdError:
        """The worker's error, as the caller raises it."""
        kind = getattr(errors, self.kind, MlsdError)
        error: MlsdError = MlsdError.__new__(kind)
        MlsdError.__init__(error, self.message, hint=self.hint)  # the message already tells the end of the log
        if isinstance(error, NativeError):
            error.code, error.log = self.code, self.log
        return error


class Returned(Record, frozen=True, kw_only=True, tag=True):
    """An answer to a call."""

    value: msgspec.Raw


class Finished(Record, frozen=True, kw_only=True, tag=True):
    """The call is over."""


Event = Started | Progress | Waiting | BlockMeasured | Refused | Returned | Finished


def engine_and_models(arguments: Mapping[str, Any]) -> tuple[EngineOptions | None, tuple[ModelFile, ...]]:
    """The engine, and the target, draft or one model, that a function of the worker is given, alone or in a job."""
    job = arguments.get("job")
    engine, *files = (arguments.get(name, getattr(job, name, None)) for name in ("engine", "target", "draft", "model"))
    return engine, tuple(file for file in files if file is not None)


def now() -> str:
    """When a trial starts, as it is stored."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def trial_of(slot: Slot, **measured: Any) -> Trial:
    """The trial of a slot with what was measured; by itself it started now."""
    of_slot = {name: getattr(slot, name) for name in ("case_id", "block", "repeat", "position")}
    return Trial(**{"arm": slot.case.arm, "gamma": slot.case.gamma, "started_at": now(), **of_slot, **measured})


def failed_trial(slot: Slot, reason: str) -> Trial:
    """The row of a trial that gave no number."""
    return trial_of(slot, status=Status.FAILED, reason=reason)

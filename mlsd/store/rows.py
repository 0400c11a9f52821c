"""Values of the store beside the shared records: runs, stored trials, calibration, coverage."""

import hashlib
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from mlsd.records import Amount, ArmKind, Case, Count, Environment, Few, QualityWarning, Record, Sampling, Status, Trial
from mlsd.trials.results import SessionPlan
from mlsd.trials.sums import Sums

RunStatus = Literal["started", "finished", "interrupted"]
PassKind = Literal["target_pass", "draft_step", "prefill", "rollback", "checkpoint", "sample"]
TokenSource = Literal["text", "draft"]
Span = Annotated[int, msgspec.Meta(gt=0, le=(1 << 63) - 1)]  # a measured time is never 0
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e300)]


class Run(Record, frozen=True, kw_only=True):
    """One invocation of mlsd: where, with which plan, how it ended."""

    id: int
    status: RunStatus
    started_at: str  # ISO 8601, UTC
    ended_at: str | None
    seed: int  # of the order of arms and blocks
    environment: Environment
    plan: dict[str, Any]  # the resolved suites, profile and options

    @property
    def decides(self) -> SessionPlan | None:
        """What of its plan its session decides; None: of before this was stored."""
        own = self.plan.get("decides")
        return None if own is None else msgspec.convert(own, SessionPlan)


class MeasuredBlock(NamedTuple):
    """What became of a block at its latest measurement."""

    statuses: dict[str, Status]  # by case

    @property
    def whole(self) -> bool:
        """Whether a plan that holds it need not measure it again."""
        return all(status not in (Status.FAILED, Status.DISTURBED) for status in self.statuses.values())


class MeasuredTrials(NamedTuple):
    """A block as it was stored."""

    block_id: int
    trials: tuple[Trial, ...]
    ids: tuple[int, ...]  # of the trials


class MeasuredCase(NamedTuple):
    """How many trials of a case a machine and build have, superseded ones left out."""

    environment_key: str
    case_id: str
    n_trials: int
    n_valid: int
    last_trial: int
    last_run: int


class StoredTrial(Record, frozen=True, kw_only=True):
    """A trial with its place in the store."""

    id: int
    block_id: int  # trials of one block were measured by one process, one after the other
    run_id: int
    environment_key: str
    trial: Trial
    sums: Sums | None = None  # of its rounds, which need not be read for them; None of a trial without
    superseded: bool = False  # its block was measured again


class TrialFilter(Record, frozen=True, kw_only=True):
    """Which trials to read; every field narrows the choice, None leaves it open."""

    trial_id: int | None = None
    run_id: int | None = None
    suite: str | None = None
    arm: ArmKind | None = None
    failed: bool | None = None
    case_id: str | None = None  # a whole id or its beginning
    valid: bool | None = None
    superseded: bool = False  # True: also those of blocks that were measured again


class StoredWarning(QualityWarning, frozen=True, kw_only=True):
    """A quality warning with its place in the store."""

    run_id: int


class CalibrationPoint(Record, frozen=True, kw_only=True):
    """One timed pass of one kind on one model."""

    model_key: str  # see `ModelRef.key`
    kind: PassKind
    rows: Few  # k: positions in the pass
    depth: Few  # positions already in the context
    repeat: Few
    span_ns: Span


class Coverage(Record, frozen=True, kw_only=True):
    """How many distinct experts one layer chose in windows of k consecutive tokens."""

    model_key: str
    source: TokenSource  # real text, or tokens that a drafter proposed
    layer: Few
    window: Few  # k: consecutive tokens
    distinct: Annotated[
        dict[Few, Span], msgspec.Meta(min_length=1)
    ]  # distinct experts in a window -> number of windows

    @property
    def n_windows(self) -> int:
        return sum(self.distinct.values())

    @property
    def distinct_mean(self) -> float:
        """N(k): the mean number of distinct experts a window."""
        return sum(n * count for n, count in self.distinct.items()) / self.n_windows


class ExpertLoad(Record, frozen=True, kw_only=True):
    """How often each expert of one layer was chosen."""

    model_key: str
    source: TokenSource
    layer: Few
    chosen: tuple[Count, ...]  # times, by expert number


class StreamRead(Record, frozen=True, kw_only=True):
    """One streaming read of memory, without llama.cpp."""

    n_threads: Few
    repeat: Few
    gb_s: Rate  # 10^9 bytes a second


class TimedPass(Record, frozen=True, kw_only=True):
    """Single-token passes of one synthetic model in one block."""

    quant: str
    n_bytes: Count  # read by a pass
    block: Few
    ms: Rate


class DraftDistance(Record, frozen=True, kw_only=True):
    """How far the model that drafts lies from its target on one text, measured without any drafting."""

    target_key: str  # see `ModelRef.key`
    drafting_key: str  # see `mlsd.drafters.drafting_key`
    text_sha256: str
    n_tokens: Few  # that were predicted
    perplexity: Amount  # of the target
    draft_perplexity: Amount
    ratio: Amount  # draft / target, from paired tokens, with its 95 % interval
    ratio_low: Amount
    ratio_high: Amount
    total_variation: Amount  # mean over positions, 0 .. 1
    total_variation_error: Amount  # standard error
    agreement: Amount  # share of positions where both find the same token likeliest


# --- what may be averaged with what -----------------------------------------------------------------------------


def environment_key(environment: Environment) -> str:
    """Equal for two runs exactly when host, backend, device, llama.cpp build and a Mac's settings are the same."""
    parts = (
        environment.host,
        environment.backend,
        environment.device,
        environment.llama_cpp_build,
        environment.llama_cpp_python_version,
    )
    return _digest(parts if environment.speed_settings is None else (*parts, environment.speed_settings))


def comparability_key(case: Case, environment_key: str) -> str:
    """Equal for two trials only if their times may stand in one average or ratio (16 hex digits).

    It holds the machine and build, the target's content, the sampling (of greedy sampling nothing else), the engine
    options, and the server where one decoded. Drafter, gamma, prompt and n_predict are left out: they are what a study
    compares.
    """
    target = case.target.key
    sampling = Sampling() if case.sampling.greedy else case.sampling
    parts = (environment_key, target, msgspec.to_builtins(sampling), msgspec.to_builtins(case.engine))
    return _digest(parts if case.server is None else (*parts, case.server))


def _digest(parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]

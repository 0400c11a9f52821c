"""Values of the store beside the shared records: runs, and what was measured of the machine."""

import hashlib
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from mlsd.engine.parts import PARTS, Part
from mlsd.records import Amount, ArmKind, Case, Count, Environment, Few, QualityWarning, Record, Sampling
from mlsd.trials.results import SessionPlan
from mlsd.trials.stages import StageTime

COMPARE = "compare"  # the command in the plans of runs that compare builds or settings
CONTROL = "control"  # their first side once more: what differs there is the machine's noise
OUTPUT = "output_"  # how the code of a warning about another build's output begins; then the verdict
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
        """What of its plan its session decides; None: nothing, as of a calibration."""
        decides = self.plan.get("decides")
        return None if decides is None else msgspec.convert(decides, SessionPlan)

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """Where the time of its workers went; empty where they did not say."""
        return msgspec.convert(self.plan.get("stages", ()), tuple[StageTime, ...])


class MeasuredCase(NamedTuple):
    """How many trials of a case a machine and build have, superseded ones left out."""

    environment_key: str
    case_id: str
    n_trials: int
    n_valid: int
    last_trial: int
    last_run: int


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


class MachineFigure(Record, frozen=True, kw_only=True):
    """Something that was measured of the machine."""


class CalibrationPoint(MachineFigure, frozen=True, kw_only=True):
    """One timed pass of one kind on one model."""

    model_key: str  # see `ModelRef.key`
    kind: PassKind
    rows: Few  # k: positions in the pass
    depth: Few  # positions already in the context
    repeat: Few
    span_ns: Span


class WidthExactness(MachineFigure, frozen=True, kw_only=True, tag=True):
    """How passes over k rows compare with passes over one, on one text."""

    model_key: str
    rows: Few
    n_tokens: Few  # on which it was compared: what is equal on these may differ later
    is_equal: bool  # every logit, bit for bit
    largest_difference: Amount  # of a logit
    n_changed: Count  # tokens that are the best of one and not of the other
    largest_gap: Amount | None  # between the two best logits of single passes, where a token changed


class Coverage(MachineFigure, frozen=True, kw_only=True):
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


class ExpertLoad(MachineFigure, frozen=True, kw_only=True):
    """How often each expert of one layer was chosen."""

    model_key: str
    source: TokenSource
    layer: Few
    chosen: tuple[Count, ...]  # times, by expert number


class StreamRead(MachineFigure, frozen=True, kw_only=True):
    """One streaming read of memory, without llama.cpp."""

    n_threads: Few
    repeat: Few
    gb_s: Rate  # 10^9 bytes a second


class TimedPass(MachineFigure, frozen=True, kw_only=True):
    """Single-token passes of one synthetic model in one block."""

    quant: str
    n_bytes: Count  # read by a pass
    block: Few
    ms: Rate


# Shares are in doubt where the pieces of a watched pass do not sum to a plain pass within this factor, ...
_AGREEMENT_LIMIT = 1.25
# ... and where looking took longer than computing: caches are then not what they are in a plain pass.
_INFLATION_LIMIT = 2.0


class PassShares(MachineFigure, frozen=True, kw_only=True):
    """The fastest of several passes of one width at one depth, part by part: a busy machine only ever adds time.

    Profiling: none of these times is a speed.
    """

    model_key: str  # of the model that makes the pass
    # Where that is no model of its own but a part of the model with that key: which (`drafters.drafting_key`).
    drafting_key: str | None = None
    rows: Few  # positions of the pass; each makes an output
    depth: Few  # positions in the context before it
    n_passes: Few  # counted, of each kind
    plain_ns: Span  # a pass as it runs in any measurement
    profiled_ns: Span  # the same pass with the clock read between parts
    headless_ns: Count  # a plain pass without outputs, hence without head
    parts_ns: dict[Part, Count]  # of the profiled pass; parts that the graph does not have are left out

    @property
    def shares(self) -> dict[Part, float | None]:
        """Each part's share of all parts; None for a part that the graph does not have."""
        total = sum(self.parts_ns.values())
        return {part: self.parts_ns[part] / total if part in self.parts_ns else None for part in PARTS}

    @property
    def inflation(self) -> float:
        return self.profiled_ns / self.plain_ns

    @property
    def agreement(self) -> float:
        """Sum of the parts over a plain pass; the time between them, in which this program looks, is no part."""
        return sum(self.parts_ns.values()) / self.plain_ns

    @property
    def in_doubt(self) -> bool:
        """Whether looking, or noise, changed the pass too much for its shares to be those of a plain pass."""
        agrees = 1 / _AGREEMENT_LIMIT <= self.agreement <= _AGREEMENT_LIMIT
        return not agrees or self.inflation > _INFLATION_LIMIT

    @property
    def head_by_difference(self) -> float:
        """The share of head and sampling a second way, without looking: (T(k) - T(k without outputs)) / T(k).

        Graphs that drop rows without output before their last feed-forward half lose that, too, so it may be too large
        by one of the network's halves of a block.
        """
        return 1 - self.headless_ns / self.plain_ns


class _FigureKind(NamedTuple):
    """How the figures of a class are stored."""

    name: str
    what: str  # one of them, in words


FIGURES: dict[type[MachineFigure], _FigureKind] = {
    CalibrationPoint: _FigureKind("calibration", "a timed pass"),
    WidthExactness: _FigureKind("width", "a compared width"),
    Coverage: _FigureKind("coverage", "the coverage"),
    ExpertLoad: _FigureKind("expert_load", "the experts"),
    StreamRead: _FigureKind("stream_read", "a streaming read"),
    TimedPass: _FigureKind("known_pass", "a timed pass"),
    PassShares: _FigureKind("pass_share", "a profiled pass"),
}


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
    fields = ("host", "backend", "device", "llama_cpp_build", "llama_cpp_python_version")
    parts = tuple(getattr(environment, name) for name in fields)
    settings = environment.speed_settings
    return _digest(parts if settings is None else (*parts, settings))


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

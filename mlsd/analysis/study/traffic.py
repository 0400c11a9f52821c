"""What passes read of memory and compute, how fast, and what that leaves of a pass over k: section 5.2 of the study.

Bytes are those of the tensors that a pass needs: of a mixture of experts the ones that were counted, all else once.
The study takes all weights for every pass; both stand here side by side. GB and GFLOP are 10^9.
"""

from collections.abc import Mapping

from mlsd.analysis.experts.coverage import CoverageRow
from mlsd.analysis.fits.calibration import TargetCurve
from mlsd.records import ModelFacts, Record
from mlsd.stats import Interval
from mlsd.trials.results import ArmResult

ENOUGH = 4  # rows of a pass that may count as wide


class Roof(Record, frozen=True, kw_only=True):
    """What memory gave at most, and arithmetic at least: the level of the fastest wide pass is not a limit."""

    name: str
    gb_s: float
    gflop_s: float | None  # of the fastest wide pass; None: none was timed
    source: str
    stated_gb_s: float | None = None  # the published peak

    @property
    def ridge(self) -> float | None:
        """Operations a byte up to which memory is the nearer limit; arithmetic may be the nearer one only beyond."""
        return None if self.gflop_s is None else self.gflop_s / self.gb_s


class Pass(Record, frozen=True, kw_only=True):
    """Something that read memory: a pass over k positions of a model, or a plain read."""

    model: str  # its id, the quantization of known bytes, or the threads of a plain read
    source: str  # plain decoding, timed passes, known bytes, plain read
    gb_s: float  # what it reads over its time
    k: int | None = None
    ms: Interval | None = None
    read_bytes: float | None = None  # of weights, by the tensors that it needs
    weight_bytes: float | None = None  # of all tensors, which the study takes every pass to read
    gflop_s: float | None = None  # two operations a weight and position, over the time
    intensity: float | None = None  # operations a byte (Williams, Waterman, Patterson, CACM 2009)
    experts: float | None = None  # distinct ones of a layer, counted; None: dense, or a plain token
    time_a_token: float | None = None  # T(k) / (k T(1)): 1 saves nothing, 1/k is a pass that costs one token
    bytes_a_token: float | None = None  # bytes(k) / (k bytes(1))
    roof: Roof | None = None  # of the machine it ran on

    @property
    def claimed_gb_s(self) -> float | None:
        """As the study computes it: all weights over the time."""
        return self.weight_bytes / self.ms.value / 1e6 if self.weight_bytes and self.ms else None

    def of_stated(self, gb_s: float | None) -> float | None:
        """Such a speed over the published peak."""
        return gb_s / self.roof.stated_gb_s if gb_s is not None and self.roof and self.roof.stated_gb_s else None


# llama.cpp discussion 4167 (audit/published/mac-plain.toml): 1401.85 tok/s of Llama-2-7B F16 over 512 positions, two
# operations for each of its 6.74e9 weights. The memory's peak is Apple's.
M2_ULTRA = Roof(
    name="Apple M2 Ultra, 76 cores",
    gb_s=800.0,
    gflop_s=1401.85 * 2 * 6.74,
    stated_gb_s=800.0,
    source="published: 800 GB/s, and llama.cpp over 512 positions in F16",
)


def plain_tokens(arms: list[ArmResult], models: Mapping[str, ModelFacts]) -> list[Pass]:
    """A token of plain decoding of each target and suite: what it reads, over the time that it takes."""
    passes = []
    for arm in arms:
        facts, tok_s = models.get(arm.case.target.id), arm.tok_s
        if not arm.is_plain or not arm.n_valid or facts is None or not tok_s or not _has_bytes(facts):
            continue
        ms, spread = 1e3 / tok_s, arm.spread or 0.0
        span = Interval(value=ms, low=ms / (1 + spread), high=ms * (1 + spread), n=arm.n_valid)
        passes.append(_pass(arm.case.target.id, facts, "plain decoding", 1, span))
    return passes


def timed_passes(
    name: str, facts: ModelFacts, curve: TargetCurve, counted: Mapping[int, CoverageRow] | None = None
) -> list[Pass]:
    """Every timed pass whose bytes are known: of a mixture those over as many tokens as its experts were counted in."""
    if not _has_bytes(facts):
        return []
    passes = []
    for timed in curve.passes:
        row = (counted or {}).get(timed.rows)
        if facts.n_experts and (row is None or row.bytes_ratio is None) and timed.rows > 1:
            continue
        passes.append(_pass(name, facts, "timed passes", timed.rows, timed.ms, curve.per_row[timed.rows], row))
    return passes


def compute_roof(passes: list[Pass]) -> float | None:
    """GFLOP/s of the fastest wide pass: arithmetic gives so much at least."""
    return max((one.gflop_s for one in passes if (one.k or 0) >= ENOUGH and one.gflop_s is not None), default=None)


def _has_bytes(facts: ModelFacts) -> bool:
    return bool(facts.active_bytes and facts.weight_bytes and facts.n_parameters_active)


def _pass(
    name: str,
    facts: ModelFacts,
    source: str,
    k: int,
    ms: Interval,
    share: float | None = None,
    row: CoverageRow | None = None,
) -> Pass:
    ratio = 1.0 if row is None or row.bytes_ratio is None else row.bytes_ratio
    n_bytes, gflop = (facts.active_bytes or 0) * ratio, 2e-9 * (facts.n_parameters_active or 0) * k
    return Pass(
        model=name,
        source=source,
        gb_s=n_bytes / ms.value / 1e6,
        k=k,
        ms=ms,
        read_bytes=n_bytes,
        weight_bytes=facts.weight_bytes,
        gflop_s=1e3 * gflop / ms.value,
        intensity=1e9 * gflop / n_bytes,
        experts=None if row is None else row.text,
        time_a_token=share,
        bytes_a_token=ratio / k,
    )

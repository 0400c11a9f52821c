"""What passes read of memory and compute, how fast, and what that leaves of a pass over k: section 5.2 of the study.

Bytes are those of the tensors that a pass needs: of a mixture of experts the ones that were counted, all else once.
The study takes all weights for every pass; both stand here side by side. GB and GFLOP are 10^9.
"""

from collections.abc import Mapping
from typing import Literal

from mlsd.analysis.experts.coverage import CoverageRow
from mlsd.analysis.fits.calibration import TargetCurve
from mlsd.records import ModelFacts, Record
from mlsd.stats import Interval
from mlsd.trials.results import ArmResult

Source = Literal["plain decoding", "timed passes"]
ENOUGH = 4  # rows of a pass that may count as wide


class Pass(Record, frozen=True, kw_only=True):
    """A pass over k positions of one model."""

    model: str
    source: Source
    k: int
    ms: Interval
    read_bytes: float  # of weights, by the tensors that it needs
    weight_bytes: int  # of all tensors, which the study takes every pass to read
    gflop: float  # two operations a weight and position
    experts: float | None  # distinct ones of a layer, counted; None: dense, or a plain token, which chooses so many
    time_a_token: float | None  # T(k) / (k T(1)): 1 saves nothing, 1/k is a pass that costs one token
    bytes_a_token: float  # bytes(k) / (k bytes(1))

    @property
    def gb_s(self) -> float:
        return self.read_bytes / self.ms.value / 1e6

    @property
    def claimed_gb_s(self) -> float:
        """As the study computes it: all weights over the time."""
        return self.weight_bytes / self.ms.value / 1e6

    @property
    def gflop_s(self) -> float:
        return 1e3 * self.gflop / self.ms.value

    @property
    def intensity(self) -> float:
        """Operations a byte (Williams, Waterman, Patterson, CACM 2009)."""
        return 1e9 * self.gflop / self.read_bytes


class Roof(Record, frozen=True, kw_only=True):
    """What a machine gives at most, and where the two limits meet."""

    name: str
    gb_s: float
    gflop_s: float | None  # None: no wide pass was timed
    source: str
    stated_gb_s: float | None = None  # the published peak

    @property
    def ridge(self) -> float | None:
        """Operations a byte from which arithmetic is the limit."""
        return None if self.gflop_s is None else self.gflop_s / self.gb_s


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
    found = []
    for arm in arms:
        facts, tok_s = models.get(arm.case.target.id), arm.tok_s
        if not arm.is_plain or not arm.n_valid or facts is None or not tok_s or not _known(facts):
            continue
        ms, spread = 1e3 / tok_s, arm.spread or 0.0
        span = Interval(value=ms, low=ms / (1 + spread), high=ms * (1 + spread), n=arm.n_valid)
        found.append(_pass(arm.case.target.id, facts, "plain decoding", 1, span, None, None))
    return found


def timed_passes(
    name: str, facts: ModelFacts, curve: TargetCurve, counted: Mapping[int, CoverageRow] | None = None
) -> list[Pass]:
    """Every timed pass whose bytes are known: of a mixture those over as many tokens as its experts were counted in."""
    if not _known(facts):
        return []
    found = []
    for timed in curve.passes:
        row = (counted or {}).get(timed.rows)
        if facts.n_experts and (row is None or row.bytes_ratio is None) and timed.rows > 1:
            continue
        share = curve.per_row[timed.rows]
        found.append(_pass(name, facts, "timed passes", timed.rows, timed.ms, share, row))
    return found


def compute_roof(passes: list[Pass]) -> float | None:
    """GFLOP/s of the fastest wide pass: what arithmetic gave, where memory can hardly have been the limit."""
    return max((one.gflop_s for one in passes if one.k >= ENOUGH), default=None)


def _known(facts: ModelFacts) -> bool:
    return bool(facts.active_bytes and facts.weight_bytes and facts.n_parameters_active)


def _pass(
    name: str, facts: ModelFacts, source: Source, k: int, ms: Interval, share: float | None, row: CoverageRow | None
) -> Pass:
    ratio = 1.0 if row is None or row.bytes_ratio is None else row.bytes_ratio
    return Pass(
        model=name,
        source=source,
        k=k,
        ms=ms,
        read_bytes=(facts.active_bytes or 0) * ratio,
        weight_bytes=facts.weight_bytes or 0,
        gflop=2e-9 * (facts.n_parameters_active or 0) * k,
        experts=None if row is None else row.text,
        time_a_token=share,
        bytes_a_token=ratio / k,
    )

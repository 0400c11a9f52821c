"""Does verification amortize on a mixture of experts at batch one: k tokens in one pass against k plain passes.

The study (sections 2.3, 5.1 and 5.2) takes all weights to be read by every pass whatever the router chooses, so that a
token of k costs 1/k. Here bytes come from the experts that were counted, times from the passes that were timed.
"""

from collections.abc import Sequence

from mlsd.analysis.experts.coverage import CoverageTable
from mlsd.analysis.fits.calibration import median_interval
from mlsd.records import ModelFacts, Record
from mlsd.stats import Interval, grouped
from mlsd.store.rows import CalibrationPoint


class Mixture(Record, frozen=True, kw_only=True):
    """What was measured of one mixture of experts."""

    name: str
    coverage: CoverageTable
    time_a_token: dict[int, Interval]  # T(k) / (k T(1)) of each k timed: 1 saves nothing, 1/k is free verification
    plain_bytes: int | None  # of a plain pass
    weight_bytes: int | None
    synthetic: bool  # random weights: bytes and times are real, the routing is a random router's

    @property
    def plain_of_weights(self) -> float | None:
        """Bytes of a plain pass over all weights."""
        return self.plain_bytes / self.weight_bytes if self.plain_bytes and self.weight_bytes else None


def mixture(name: str, table: CoverageTable, facts: ModelFacts, points: Sequence[CalibrationPoint] = ()) -> Mixture:
    """Bytes and times of a token of each pass whose experts were counted; times at the smallest depth timed."""
    passes = [p for p in points if p.kind == "target_pass"]
    depth = min((p.depth for p in passes), default=None)
    return Mixture(
        name=name,
        coverage=table,
        time_a_token=time_shares([p for p in passes if p.depth == depth]),
        plain_bytes=facts.active_bytes,
        weight_bytes=facts.weight_bytes,
        synthetic=facts.synthetic,
    )


def time_shares(passes: Sequence[CalibrationPoint]) -> dict[int, Interval]:
    """T(k) / (k T(1)) by k: the median over repeats of ratios within a repeat, where what slows the machine cancels."""
    plain = {p.repeat: p.span_ns for p in passes if p.rows == 1}
    paired = sorted(grouped((p for p in passes if p.repeat in plain), lambda p: p.rows).items())
    return {k: median_interval([p.span_ns / (k * plain[p.repeat]) for p in own]) for k, own in paired}

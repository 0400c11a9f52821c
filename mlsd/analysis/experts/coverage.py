"""Does verification amortize on a mixture of experts at batch one: k tokens in one pass against k plain passes.

The study (sections 2.3, 5.1 and 5.2) takes all weights to be read by every pass whatever the router chooses, so that a
token of k costs 1/k. Here bytes come from the experts that were counted, distinct ones in windows of consecutive
tokens, and times from the passes that were timed. Theories of the experts: independent uniform routing (MoESD, arXiv
2505.19645), and the same with one fitted correlation.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from mlsd.analysis.fits.calibration import median_interval
from mlsd.analysis.fits.curves import distinct_experts
from mlsd.analysis.fits.study_fits import expert_shape
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, Record
from mlsd.stats import Interval, grouped, jackknife
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad


class CoverageRow(Record, frozen=True, kw_only=True):
    """Distinct experts of a layer in k tokens, mean over layers and windows."""

    window: int  # k
    text: float  # measured on real text
    drafted: float | None  # measured on verification batches of a draft; None: no draft was given
    uniform: float  # E (1 - (1 - K/E)^k)
    correlated: float  # the same with k^(1-r) tokens
    lowest_layer: float  # of the layers' means on text
    highest_layer: float
    bytes_ratio: float | None  # bytes(k) / bytes(1), from the measured experts; None: the model's bytes are not known
    amortization: float | None  # bytes(k) / (k bytes(1)): bytes a token against plain decoding; 1 saves nothing
    uniform_amortization: float | None  # the same with the experts of either theory
    correlated_amortization: float | None
    against_all: float | None  # bytes(k) / all weights: what the claim "all parameters are loaded" overstates

    @property
    def claimed(self) -> float:
        """What the study says of a token, as if every pass read everything; so it is for a dense model."""
        return 1.0 / self.window


class CoverageTable(Record, frozen=True, kw_only=True):
    """Theory and measurement of one model."""

    n_experts: int
    n_used: int
    n_layers: int
    rows: tuple[CoverageRow, ...]  # by window
    overlap: float | None  # experts that two neighbouring tokens share, of K; None without windows of 1 and 2
    correlation: float  # fitted r
    correlation_interval: Interval  # of r, over layers; bounds are None below three layers
    uniform_error: float  # largest |uniform / measured - 1|
    correlated_error: float
    imbalance: float | None  # times the busiest expert of a layer is chosen over the mean, mean over layers


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


def coverage_table(coverage: Sequence[Coverage], facts: ModelFacts, loads: Iterable[ExpertLoad] = ()) -> CoverageTable:
    """Compare both theories with measured coverage of one model.

    Raises AnalysisError when nothing was measured on text or the model is dense.
    """
    means: dict[str, dict[int, dict[int, float]]] = {"text": {}, "draft": {}}  # distinct experts by window and layer
    for layer_coverage in coverage:
        means.setdefault(layer_coverage.source, {}).setdefault(layer_coverage.window, {})[layer_coverage.layer] = (
            layer_coverage.distinct_mean
        )
    text, drafted = means["text"], means["draft"]
    n_experts, n_used = facts.n_experts, facts.n_experts_used
    if not text or not n_experts or not n_used:
        raise AnalysisError(
            f"No expert coverage of {facts.ref.id} was measured.", hint="Measure it with `mlsd calibrate`."
        )
    windows = np.array(sorted(text))

    def over_layers(without: int | None = None) -> np.ndarray:
        return np.array([np.mean([n for layer, n in text[w].items() if layer != without]) for w in windows])

    measured = over_layers()
    r = fit_correlation(windows, measured, n_experts, n_used)
    # Layers choose their experts each by a router of its own.
    layers = sorted(set.intersection(*map(set, text.values())))
    without_each = [r]
    if len(layers) > 1:
        without_each = [fit_correlation(windows, over_layers(layer), n_experts, n_used) for layer in layers]
    uniform = distinct_experts(windows, n_experts, n_used)
    correlated = distinct_experts(windows, n_experts, n_used, r)
    shape, plain_share = expert_shape(facts), (facts.active_bytes or 0) / (facts.weight_bytes or 1)

    def bytes_ratio(distinct: float) -> float | None:
        return None if shape is None else float(shape.pass_bytes(distinct)) / (facts.active_bytes or 1)

    rows = []
    for i, w in enumerate(windows.tolist()):
        ratios = [bytes_ratio(distinct[i]) for distinct in (measured, uniform, correlated)]
        a_token = [None if ratio is None else ratio / w for ratio in ratios]
        row = CoverageRow(
            window=w,
            text=float(measured[i]),
            drafted=float(np.mean(list(drafted[w].values()))) if w in drafted else None,
            uniform=float(uniform[i]),
            correlated=float(correlated[i]),
            lowest_layer=min(text[w].values()),
            highest_layer=max(text[w].values()),
            bytes_ratio=ratios[0],
            amortization=a_token[0],
            uniform_amortization=a_token[1],
            correlated_amortization=a_token[2],
            against_all=None if ratios[0] is None else ratios[0] * plain_share,
        )
        rows.append(row)
    by_window = {row.window: row.text for row in rows}
    chosen = [np.asarray(load.chosen, dtype=float) for load in loads if load.source == "text"]
    uneven = [np.max(times) / np.mean(times) for times in chosen if np.any(times)]
    return CoverageTable(
        n_experts=n_experts,
        n_used=n_used,
        n_layers=len(next(iter(text.values()))),
        rows=tuple(rows),
        overlap=2 * n_used - by_window[2] if 2 in by_window else None,
        correlation=r,
        correlation_interval=jackknife(r, without_each, 0.0, 1.0),
        uniform_error=float(np.max(np.abs(uniform / measured - 1))),
        correlated_error=float(np.max(np.abs(correlated / measured - 1))),
        imbalance=float(np.mean(uneven)) if uneven else None,
    )


def fit_correlation(windows: Sequence[int] | np.ndarray, measured: np.ndarray, n_experts: int, n_used: int) -> float:
    """The one r of `curves.distinct_experts` that comes nearest to measured N(k), least squares of logarithms.

    0 is independent uniform routing. A value below 0 cannot be fitted: real routers share more, not fewer, experts.
    """
    from scipy.optimize import minimize_scalar

    many = np.asarray(windows) > 1
    if not np.any(many):
        raise AnalysisError("A correlation needs windows of two or more tokens.")

    def loss(r: float) -> float:
        predicted = distinct_experts(np.asarray(windows)[many], n_experts, n_used, r)
        return float(np.sum((np.log(predicted) - np.log(measured[many])) ** 2))

    return float(minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-6}).x)


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
    return {k: median_interval([p.span_ns / (k * plain[p.repeat]) for p in wide]) for k, wide in paired}

"""Does verification amortize on a mixture of experts? Theory of expert coverage against what was measured.

Theories: independent uniform routing (MoESD, arXiv 2505.19645), the same with one fitted correlation, and the bytes
that follow from either. Measured: distinct experts in windows of consecutive tokens, from the routers themselves.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mlsd.analysis.fits.curves import distinct_experts
from mlsd.analysis.fits.study_fits import expert_shape
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, Record
from mlsd.stats import LEAST_GROUPS, Interval, jackknife
from mlsd.store.rows import Coverage, ExpertLoad


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


def coverage_table(coverage: Sequence[Coverage], facts: ModelFacts, loads: Iterable[ExpertLoad] = ()) -> CoverageTable:
    """Compare both theories with measured coverage of one model.

    Raises AnalysisError when nothing was measured on text or the model is dense.
    """
    text, drafted = _layer_means(coverage, "text"), _layer_means(coverage, "draft")
    if not text or not facts.n_experts or not facts.n_experts_used:
        raise AnalysisError(
            f"No expert coverage of {facts.ref.id} was measured.", hint="Measure it with `mlsd calibrate`."
        )
    windows = np.array(sorted(text))
    measured = np.array([np.mean(list(text[w].values())) for w in windows])
    n_experts, n_used = facts.n_experts, facts.n_experts_used
    r = fit_correlation(windows, measured, n_experts, n_used)
    uniform = distinct_experts(windows, n_experts, n_used)
    correlated = distinct_experts(windows, n_experts, n_used, r)
    ratio, by_uniform, by_correlation = (_bytes_ratio(found, facts) for found in (measured, uniform, correlated))
    plain_share = (facts.active_bytes or 0) / (facts.weight_bytes or 1)
    rows = tuple(
        CoverageRow(
            window=int(w),
            text=float(measured[i]),
            drafted=float(np.mean(list(drafted[w].values()))) if w in drafted else None,
            uniform=float(uniform[i]),
            correlated=float(correlated[i]),
            lowest_layer=min(text[w].values()),
            highest_layer=max(text[w].values()),
            bytes_ratio=None if ratio is None else float(ratio[i]),
            amortization=None if ratio is None else float(ratio[i] / w),
            uniform_amortization=None if by_uniform is None else float(by_uniform[i] / w),
            correlated_amortization=None if by_correlation is None else float(by_correlation[i] / w),
            against_all=None if ratio is None else float(ratio[i] * plain_share),
        )
        for i, w in enumerate(windows)
    )
    by_window = {row.window: row.text for row in rows}
    return CoverageTable(
        n_experts=n_experts,
        n_used=n_used,
        n_layers=len(next(iter(text.values()))),
        rows=rows,
        overlap=2 * n_used - by_window[2] if 2 in by_window else None,
        correlation=r,
        correlation_interval=_over_layers(r, text, windows, n_experts, n_used),
        uniform_error=float(np.max(np.abs(uniform / measured - 1))),
        correlated_error=float(np.max(np.abs(correlated / measured - 1))),
        imbalance=_imbalance(loads),
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


def _over_layers(
    r: float, means: Mapping[int, Mapping[int, float]], windows: np.ndarray, n_experts: int, n_used: int
) -> Interval:
    """The interval of r over layers, which choose their experts each by a router of its own; within 0 and 1."""
    layers = sorted(set.intersection(*(set(means[int(w)]) for w in windows)))
    if len(layers) < LEAST_GROUPS:
        return Interval(value=r, n=len(layers))
    without = [
        fit_correlation(
            windows,
            np.array([np.mean([means[int(w)][layer] for layer in layers if layer != left]) for w in windows]),
            n_experts,
            n_used,
        )
        for left in layers
    ]
    return jackknife(r, without, 0.0, 1.0)


def _bytes_ratio(distinct: np.ndarray, facts: ModelFacts) -> np.ndarray | None:
    """bytes(k) over bytes(1) of passes that touch so many experts of a layer."""
    shape = expert_shape(facts)
    return None if shape is None or not facts.active_bytes else shape.pass_bytes(distinct) / facts.active_bytes


def _layer_means(coverage: Iterable[Coverage], source: str) -> dict[int, dict[int, float]]:
    """Window -> layer -> mean distinct experts."""
    means: dict[int, dict[int, float]] = {}
    for row in coverage:
        if row.source == source:
            means.setdefault(row.window, {})[row.layer] = row.distinct_mean
    return means


def _imbalance(loads: Iterable[ExpertLoad]) -> float | None:
    chosen = [np.asarray(load.chosen, dtype=float) for load in loads if load.source == "text"]
    ratios = [np.max(times) / np.mean(times) for times in chosen if np.any(times)]
    return float(np.mean(ratios)) if ratios else None

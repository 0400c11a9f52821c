"""Does verification amortize on a mixture of experts at batch one: k tokens in one pass against k plain passes.

The study (sections 2.3, 5.1 and 5.2) takes all weights to be read by every pass whatever the router chooses, so that a
token of k costs 1/k. Here bytes come from the experts that were counted, times from the passes that were timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mlsd.analysis.experts.coverage import CoverageTable
from mlsd.analysis.fits import fit_models
from mlsd.analysis.fits.calibration import median_interval
from mlsd.analysis.fits.fit import Fit, HeldOut, Model, fit, observations, select
from mlsd.analysis.fits.study_fits import expert_shape
from mlsd.measure.store.rows import CalibrationPoint
from mlsd.records import ModelFacts, Record
from mlsd.stats import Interval

SATURATED = 0.95  # share of the experts that MoESD calls all of them
STUDY_FORM = "linear"  # name of the theory in which every pass reads everything
_LEAST_WIDTHS = 8  # different k below which a theory's parameters are not told apart


class PassShare(Record, frozen=True, kw_only=True):
    """A token of a pass over k tokens against a plain pass: 1 saves nothing, 1/k is what a dense model would need."""

    k: int
    experts: float  # distinct, of a layer, as counted
    text_bytes: float | None  # bytes(k) / (k bytes(1)) with the experts counted; None: the file's bytes are not known
    uniform_bytes: float | None  # the same with independent uniform routing (MoESD)
    correlated_bytes: float | None  # the same with one correlation
    of_weights: float | None  # bytes(k) / all weights
    time: Interval | None  # T(k) / (k T(1)); None: not timed

    @property
    def claimed(self) -> float:
        """What the study says: every pass reads everything."""
        return 1.0 / self.k

    @property
    def passes(self) -> float | None:
        """T(k) / T(1): the tokens that a round must commit to gain, drafting not counted."""
        return None if self.time is None else self.k * self.time.value


class Theory(Record, frozen=True, kw_only=True):
    """A form of T(k), fitted to timed passes of one mixture."""

    name: str
    says: str  # which experts a pass reads
    fitted: Fit
    held_out: HeldOut  # each k predicted without its own times
    curve: tuple[tuple[int, float], ...]  # (k, fitted ms)


class Mixture(Record, frozen=True, kw_only=True):
    """What was measured of one mixture of experts."""

    name: str
    coverage: CoverageTable
    shares: tuple[PassShare, ...]  # by k
    plain_of_weights: float | None  # bytes of a plain pass over all weights
    plain_bytes: int | None
    weight_bytes: int | None
    synthetic: bool  # random weights: bytes and times are real, the routing is a random router's
    depth: int | None  # context of the timed passes
    timed: tuple[tuple[int, Interval], ...]  # (k, T(k) in ms), of the same k
    theories: tuple[Theory, ...]  # best predictor first; empty where too few k were timed
    chosen: str | None  # the simplest theory that predicts as well as the best

    @property
    def saturation(self) -> int:
        """Tokens from which MoESD expects 95 % of the experts in use: ``ceil(log_(1-K/E)(1 - 0.95))``."""
        table = self.coverage
        if table.n_used >= table.n_experts:
            return 1
        return math.ceil(math.log(1 - SATURATED) / math.log(1 - table.n_used / table.n_experts))


def mixture(name: str, table: CoverageTable, facts: ModelFacts, points: Sequence[CalibrationPoint] = ()) -> Mixture:
    """Bytes and times of a token of each pass whose experts were counted; times at the smallest depth timed."""
    passes = [p for p in points if p.kind == "target_pass"]
    depth = min((p.depth for p in passes), default=None)
    passes = [p for p in passes if p.depth == depth]
    times = time_shares(passes)
    counted = {row.window: row for row in table.rows}
    shares = tuple(
        PassShare(
            k=k,
            experts=row.text,
            text_bytes=row.amortization,
            uniform_bytes=_bytes_a_token(row.uniform, k, facts),
            correlated_bytes=_bytes_a_token(row.correlated, k, facts),
            of_weights=row.against_all,
            time=times.get(k),
        )
        for k, row in counted.items()
    )
    own = [p for p in passes if p.rows in counted]
    forms, chosen = theories(own, {k: row.text for k, row in counted.items()}, facts)
    return Mixture(
        name=name,
        coverage=table,
        shares=shares,
        plain_of_weights=facts.active_bytes / facts.weight_bytes if facts.active_bytes and facts.weight_bytes else None,
        plain_bytes=facts.active_bytes,
        weight_bytes=facts.weight_bytes,
        synthetic=facts.synthetic,
        depth=depth,
        timed=tuple((k, median_interval([p.span_ns / 1e6 for p in own if p.rows == k])) for k in _widths(own)),
        theories=forms,
        chosen=chosen,
    )


def time_shares(passes: Sequence[CalibrationPoint]) -> dict[int, Interval]:
    """T(k) / (k T(1)) by k: the median over repeats of ratios within a repeat, where what slows the machine cancels."""
    by_repeat: dict[int, dict[int, int]] = {}
    for p in passes:
        by_repeat.setdefault(p.repeat, {})[p.rows] = p.span_ns
    ratios: dict[int, list[float]] = {}
    for spans in by_repeat.values():
        for k, span in spans.items():
            if 1 in spans:
                ratios.setdefault(k, []).append(span / (k * spans[1]))
    return {k: median_interval(values) for k, values in sorted(ratios.items())}


def theories(
    passes: Sequence[CalibrationPoint], distinct: dict[int, float], facts: ModelFacts
) -> tuple[tuple[Theory, ...], str | None]:
    """Forms of T(k), each judged by k that it was not fitted to, and the one to choose; none below eight different k.

    All are ``fixed + bytes(k) / BW + per_row k`` and differ in the experts that they let a pass read; where that is all
    of them the bytes are part of `fixed`. Of MoESD's time model this holds the bias and the loading of experts; its
    ramps for compute are the term ``per_row k``.
    """
    shape = expert_shape(facts)
    widths = _widths(passes)
    if shape is None or len(widths) < _LEAST_WIDTHS:
        return (), None
    rows = [p.rows for p in passes]
    data = observations(
        [p.span_ns / 1e6 for p in passes], [p.repeat for p in passes], rows=rows, distinct=[distinct[k] for k in rows]
    )
    forms: dict[str, tuple[Model, str]] = {
        STUDY_FORM: (fit_models.linear(), "all weights, in every pass (the study)"),
        "moe-uniform": (fit_models.moe(shape, correlated=False), "independent uniform routing (MoESD)"),
        "moe-correlated": (fit_models.moe(shape, correlated=True), "one correlation, fitted to the times"),
        "moe-measured": (fit_models.moe_measured(shape), "the experts counted"),
    }
    judged = select([model for model, _ in forms.values()], data, data.columns["rows"], never=(1.0,))
    grid = {"rows": np.array(widths, dtype=float), "distinct": np.array([distinct[k] for k in widths])}
    result = []
    for error in judged.candidates:
        model, says = forms[error.model]
        fitted = fit(model, data)
        curve = model.predict(fitted.values, grid)
        points = tuple((k, float(ms)) for k, ms in zip(widths, curve, strict=True))
        result.append(Theory(name=model.name, says=says, fitted=fitted, held_out=error, curve=points))
    return tuple(result), judged.chosen


def _widths(passes: Sequence[CalibrationPoint]) -> list[int]:
    return sorted({p.rows for p in passes})


def _bytes_a_token(distinct: float, k: int, facts: ModelFacts) -> float | None:
    shape = expert_shape(facts)
    if shape is None or not facts.active_bytes:
        return None
    return (shape.always_bytes + distinct * shape.expert_bytes) / (k * facts.active_bytes)

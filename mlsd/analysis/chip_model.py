"""Passes predicted from a memory's published bandwidth alone, for machines that nobody measured here.

``T(1) = layers * t_layer + bytes / (share * peak)``, fitted to the plain-decoding figures of a published study of an
M2 Ultra, which pass the audit; each figure left out in turn says how far it predicts. T(k) of more rows has public
figures that differ by quantization and chip, so it is a range: batches of 8 gave 1.22 (27B, 3-bit, M4), 1.74 and 4.99
times (BF16) the tok/s of one.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence

import numpy as np

from mlsd.analysis import published
from mlsd.analysis.advise import CostRange
from mlsd.analysis.experts import pass_bytes
from mlsd.analysis.predict import Costs
from mlsd.analysis.study_fits import expert_shape
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, Record

STUDY = "study"
# Layers of the study's models, from their public configurations.
_LAYERS = {"moe_q4": 40, "moe_q8": 40, "dense_0.8b": 24, "dense_2b": 24, "dense_4b": 32, "dense_9b": 32}
# (8 / gain - 1) / 7 with the gains of batches of 8 above: what each further row costs, in units of the weights' time.
ROW_COST = (0.086, 0.794)
# Neighbouring tokens share experts: r of `curves.distinct_experts` that fits public counts (22, 36, 56 of 256 experts
# in 4, 8, 16 tokens); the other end of the range reads every chosen expert once a token.
SHARED = 0.25


class ChipModel(Record, frozen=True, kw_only=True):
    """The fitted constants and their errors."""

    layer_ms: float  # dense
    expert_layer_ms: float  # mixture of experts
    share: float  # of the published peak
    median_error: float  # |predicted / measured - 1| of figures left out
    worst_error: float
    n_figures: int
    source: str


class Range(Record, frozen=True, kw_only=True):
    """Milliseconds between the best and the worst case."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Geometric middle."""
        return float(np.sqrt(self.low * self.high))


@functools.cache
def chip_model() -> ChipModel:
    """Fit the published plain-decoding figures, and leave each out in turn."""
    study = published.load(STUDY)
    assert study.machine is not None
    weights = {m.id: m.pass_bytes for m in study.models if m.pass_bytes is not None}
    rows = {r.target: r.tok_s.value for r in published.context(study).rows if not r.speculative and r.tok_s}
    names = [name for name in rows if name in weights and name in _LAYERS]
    design = np.array([_design(name, weights[name], study.machine.peak_gb_s) for name in names])
    times = np.array([1e3 / rows[name] for name in names])
    errors = []
    for i in range(len(names)):
        kept = np.arange(len(names)) != i
        errors.append(abs(float(design[i] @ _solve(design[kept], times[kept]) / times[i]) - 1))
    dense, moe, inverse_share = _solve(design, times)
    return ChipModel(
        layer_ms=float(dense),
        expert_layer_ms=float(moe),
        share=float(1 / inverse_share),
        median_error=statistics.median(errors),
        worst_error=max(errors),
        n_figures=len(names),
        source=f"{study.title} ({study.machine.chip}, plain decoding)",
    )


def _design(name: str, n_bytes: float, peak_gb_s: float) -> tuple[float, float, float]:
    layers, mixture = _LAYERS[name], name.startswith("moe")
    return (0.0 if mixture else layers, layers if mixture else 0.0, n_bytes / peak_gb_s / 1e6)


def _solve(design: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Least squares on relative errors."""
    answer: np.ndarray = np.linalg.lstsq(design / times[:, None], np.ones(len(times)), rcond=None)[0]
    return answer


def chip_passes(facts: ModelFacts, peak_gb_s: float, rows: Sequence[int]) -> dict[int, Range]:
    """T(k) of a model on a chip with that peak, as ranges. Raises AnalysisError when the model's bytes are unknown."""
    shared = pass_bytes(rows, facts, SHARED)
    if shared is None or not facts.n_layers or not facts.active_bytes:
        raise AnalysisError(f"The bytes or layers of {facts.ref.id} are not known, so no chip can be predicted for it.")
    model, shape = chip_model(), expert_shape(facts)
    fixed = facts.n_layers * (model.layer_ms if shape is None else model.expert_layer_ms)
    per_byte = 1e-6 / (peak_gb_s * model.share)
    result = {}
    for k, n_bytes in zip(rows, shared, strict=True):
        alone = float(facts.active_bytes)
        most = alone if shape is None else shape.always_bytes + k * (alone - shape.always_bytes)
        always = alone if shape is None else shape.always_bytes
        low = fixed + per_byte * (float(n_bytes) + ROW_COST[0] * (k - 1) * always)
        high = fixed + per_byte * (max(most, float(n_bytes)) + ROW_COST[1] * (k - 1) * always)
        slack = model.median_error
        result[k] = Range(low=low * (1 - slack), high=high * (1 + slack))
    return result


def chip_costs(target: ModelFacts, draft: ModelFacts | None, peak_gb_s: float, rows: Sequence[int]) -> CostRange:
    """Costs of a pair on a chip with that peak: best and worst case. Rollback is taken to cost nothing."""
    verify = chip_passes(target, peak_gb_s, sorted({1, *rows}))
    step = None if draft is None else chip_passes(draft, peak_gb_s, (1,))[1]
    low, high = (
        Costs(
            verify_ms={k: getattr(span, end) for k, span in verify.items()},
            catch_up_ms={} if step is None else {1: getattr(step, end)},
            step_ms=0.0 if step is None else getattr(step, end),
        )
        for end in ("low", "high")
    )
    return CostRange(
        low=low,
        high=high,
        relative_error=0.0,  # the range holds it
        source=f"bytes over {peak_gb_s:g} GB/s",
        measured=False,
        is_mixture=bool(target.n_experts),
    )

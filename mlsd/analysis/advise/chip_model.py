"""Passes predicted from a memory's published bandwidth alone, for machines that nobody measured here.

``T(1) = layers * t_layer + bytes / (share * peak)``, fitted to the plain-decoding figures of a published study of an
M2 Ultra, which pass the audit; each figure left out in turn says how far it predicts. T(k) of more rows has public
figures that differ by quantization and chip, so it is a range: batches of 8 gave 1.22 (27B, 3-bit, M4), 1.74 and 4.99
times (BF16) the tok/s of one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from mlsd.analysis.advise.known_model import KnownModel
from mlsd.analysis.advise.prospects import CostRange
from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.experts.coverage import coverage_by_window, pass_bytes
from mlsd.analysis.fits.study_fits import expert_shape
from mlsd.analysis.predict.arms import Known
from mlsd.analysis.predict.predict import Costs, between
from mlsd.errors import AnalysisError
from mlsd.gguf_tools.shape import Shape
from mlsd.measure.store.rows import Coverage
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
    slack: float = 0.24  # of a range, both ways, as a logarithm: holds three of four figures of `chip_check`


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


def chip_passes(
    facts: ModelFacts, peak_gb_s: float, rows: Sequence[int], coverage: Iterable[Coverage] = ()
) -> dict[int, Range]:
    """T(k) of a model on a chip with that peak, as ranges; `coverage` gives distinct experts where they were counted.

    Raises AnalysisError when the model's bytes are unknown.
    """
    if not facts.n_layers or not facts.active_bytes:
        raise AnalysisError(f"The bytes or layers of {facts.ref.id} are not known, so no chip can be predicted for it.")
    model = chip_model()
    fixed = facts.n_layers * (model.expert_layer_ms if facts.n_experts else model.layer_ms)
    per_byte = 1e-6 / (peak_gb_s * model.share)
    return {
        k: Range(
            low=(fixed + per_byte * span.low) * math.exp(-model.slack),
            high=(fixed + per_byte * span.high) * math.exp(model.slack),
        )
        for k, span in _row_bytes(facts, rows, coverage).items()
    }


def pass_ratio(facts: ModelFacts, k: int, coverage: Iterable[Coverage] = ()) -> Range:
    """T(k) / T(1) by bytes alone, as a range: what the model says of a machine that does little but read weights.

    Raises AnalysisError when the model's bytes are unknown.
    """
    if not facts.active_bytes:
        raise AnalysisError(f"The bytes of {facts.ref.id} are not known.")
    span = _row_bytes(facts, (k,), coverage)[k]
    return Range(low=span.low / facts.active_bytes, high=span.high / facts.active_bytes)


def _row_bytes(facts: ModelFacts, rows: Sequence[int], coverage: Iterable[Coverage]) -> dict[int, Range]:
    """Bytes of a pass over k rows, with further rows of the always-read weights as so many bytes more.

    Experts: counted on text where they were; else between what public counts show and no sharing at all.
    """
    alone, shape = float(facts.active_bytes or 0), expert_shape(facts)
    counted = coverage_by_window(coverage)
    shared = pass_bytes(rows, facts, SHARED)
    assert shared is not None
    found = {}
    for k, fewest in zip(rows, shared, strict=True):
        always, low, high = alone, alone, alone
        if shape is not None:
            always = shape.always_bytes
            each = shape.expert_bytes * shape.n_layers
            low, high = float(fewest), always + k * (alone - always)
            if len(counted) > 1 and k > 1:
                low = high = always + between(counted, k) * each
        found[k] = Range(low=low + ROW_COST[0] * (k - 1) * always, high=high + ROW_COST[1] * (k - 1) * always)
    return found


def chip_costs(
    target: KnownModel, draft: KnownModel | None, peak_gb_s: float, rows: Sequence[int], known: Known
) -> CostRange:
    """Costs of a pair on a chip with that peak: best and worst case.

    Best: experts shared, rollback free. Worst: none shared unless they were counted; a hybrid target writes a state for
    every row, and a hybrid draft saves and loads its own and takes accepted tokens in again.
    """
    counted = known.coverage.get(target.facts.ref.key, ())
    verify = chip_passes(target.facts, peak_gb_s, sorted({1, *rows}), counted)
    steps = {} if draft is None else chip_passes(draft.facts, peak_gb_s, sorted({1, 2, *rows}))
    per_byte = 1e-6 / (peak_gb_s * chip_model().share)
    states = state_bytes(target.shape), state_bytes(None if draft is None else draft.shape)
    rest = {k: per_byte * (k * states[0] + 2 * states[1]) if k > 1 else 0.0 for k in verify}
    low, high = (
        Costs(
            verify_ms={k: getattr(span, end) for k, span in verify.items()},
            catch_up_ms={k: getattr(span, end) for k, span in steps.items()},
            step_ms=getattr(steps[1], end) if steps else 0.0,
            rest_ms=rest if end == "high" else {},
            replays=end == "high" and states[1] > 0,
        )
        for end in ("low", "high")
    )
    experts = ", experts counted on text" if counted else ", experts shared as public counts say or not at all"
    return CostRange(
        low=low,
        high=high,
        relative_error=0.0,  # the range holds it
        source=f"modelled from bytes over {peak_gb_s:g} GB/s{experts if target.facts.n_experts else ''}",
        basis="bandwidth",
        is_mixture=bool(target.facts.n_experts),
    )


def state_bytes(shape: Shape | None) -> int:
    """Recurrent state of a Gated DeltaNet hybrid, f32; 0 for other models and where the shape is not known.

    ``L_r 4 (n_v d_k d_v + (c - 1)(2 n_k d_k + n_v d_v))`` with L_r recurrent layers and convolutions c long.
    """
    if shape is None or not shape.full_attention_interval:
        return 0
    layers = sum(shape.is_recurrent(layer) for layer in range(shape.n_layers))
    values = shape.inner_size
    memory = values * shape.state_size
    convolution = (shape.conv_kernel - 1) * (2 * shape.n_groups * shape.state_size + values)
    return 4 * layers * (memory + convolution)

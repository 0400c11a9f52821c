"""Costs of a model that nobody has here, from calibrations of synthetic models of its shape, whole or cut in depth.

Layers of one model are alike, so passes grow along a line with the bytes that a token reads: ``T(k) = a(k) + b(k) x``.
Two depths or more give that line by measurement; a single one must be scaled by a ratio that is not known exactly.
Times in ms.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from mlsd.analysis.fits.calibration import relative_error
from mlsd.analysis.fits.curves import shared_experts
from mlsd.analysis.predict.costs import CostRange, Costs, between, costs_from_points, known_costs
from mlsd.analysis.predict.evidence import Evidence
from mlsd.errors import AnalysisError, InputError
from mlsd.gguf_tools.read import ModelWeight
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.records import ModelFacts, Record
from mlsd.store.rows import CalibrationPoint

_UNKNOWN_ERROR = 0.05  # of a pass that was timed too seldom to have an interval
# Relative standard error of scaling one depth by bytes: head and layers differ in speed. benchmarks/depth.py saw errors
# of 4 % (median) and 16 % (worst) from one depth of three shapes, 2 and 22 % from two depths.
_SCALING_ERROR = 0.10
_LEAST_ERROR = 0.01  # of a timed pass: a machine is never as steady as a few repeats of one file say


class Cut(Record, frozen=True, kw_only=True):
    """What was timed at one depth."""

    n_layers: int
    weight: ModelWeight
    ms: Mapping[int, float]  # T(k) by rows
    relative_error: float  # standard error of a T(k)


class FullPass(Record, frozen=True, kw_only=True):
    """One T(k) at full depth."""

    ms: float
    relative_error: float  # standard error


def full_depth(cuts: Sequence[Cut], full: ModelWeight) -> dict[int, FullPass]:
    """T(k) of the whole shape by rows, from one depth or more of it.

    Each depth scaled by bytes is one estimate, the line through several depths another; they are averaged with the
    inverse of their variances. A depth that is the whole shape is taken as it was timed. No T(k) is below T(1): a pass
    over more rows reads no less.
    """
    whole = [cut for cut in cuts if cut.weight == full]
    if whole:
        error = max(_LEAST_ERROR, whole[-1].relative_error)
        return {k: FullPass(ms=ms, relative_error=error) for k, ms in sorted(whole[-1].ms.items())}
    rows = sorted({k for cut in cuts for k in cut.ms})
    passes = {k: _combined(cuts, full, k) for k in rows}
    least = passes[rows[0]].ms
    return {k: replace(one, ms=max(one.ms, least)) for k, one in passes.items()}


def _combined(cuts: Sequence[Cut], full: ModelWeight, k: int) -> FullPass:
    deepest = max(cuts, key=lambda cut: cut.weight.active.n_bytes)
    estimates = [_scaled(deepest, full, k)]
    if len({cut.weight.active.n_bytes for cut in cuts}) > 1 and (line := _on_line(cuts, full, k)) is not None:
        estimates.append(line)
    weights = [estimate.relative_error**-2 for estimate in estimates]
    logs = [math.log(estimate.ms) for estimate in estimates]
    middle = sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights)
    # Two estimates that disagree know less than each of them claims.
    spread = sum(w * (log - middle) ** 2 for w, log in zip(weights, logs, strict=True)) / sum(weights)
    return FullPass(ms=math.exp(middle), relative_error=math.sqrt(1 / sum(weights) + spread))


def _scaled(cut: Cut, full: ModelWeight, k: int) -> FullPass:
    """``T_full(k) = T_cut(k) r``, with r between the ratios of arithmetic and of bytes.

    Every row computes with the weights that it uses, while a pass reads each expert once: where arithmetic takes the
    time r is the ratio of active weights, where memory does it is that of the bytes of k rows. Equal for dense models.
    """
    arithmetic = full.active.n_bytes / cut.weight.active.n_bytes
    memory = _read(full, k) / _read(cut.weight, k)
    error = math.hypot(_SCALING_ERROR, cut.relative_error, math.log(memory / arithmetic) / 2)
    return FullPass(ms=between(cut.ms, k) * math.sqrt(arithmetic * memory), relative_error=error)


def _read(weight: ModelWeight, k: int) -> float:
    """Bytes of a pass over k rows."""
    if not weight.n_experts:
        return float(weight.active.n_bytes)
    distinct = float(shared_experts(k, weight.n_experts, weight.n_experts_used)[0])
    return weight.always.n_bytes + weight.n_expert_layers * distinct * weight.expert.n_bytes


def _on_line(cuts: Sequence[Cut], full: ModelWeight, k: int) -> FullPass | None:
    """The line through the depths, weighted by their errors, at full depth; None where it does not rise."""
    x = np.array([cut.weight.active.n_bytes for cut in cuts], dtype=float)
    times = np.array([between(cut.ms, k) for cut in cuts])
    sigma = times * np.array([max(_LEAST_ERROR, cut.relative_error) for cut in cuts])
    design = np.column_stack([np.ones_like(x), x / full.active.n_bytes])
    covariance = np.linalg.inv((design / sigma[:, None]).T @ (design / sigma[:, None]))
    solution = covariance @ (design / sigma[:, None]).T @ (times / sigma)
    at_full = np.array([1.0, 1.0])
    value = float(at_full @ solution)
    if solution[1] <= 0 or value <= times.max():
        return None
    return FullPass(ms=value, relative_error=float(np.sqrt(at_full @ covariance @ at_full)) / value)


# --- a shape from what was timed of it -------------------------------------------------------------------------


def shape_costs(evidence: Evidence, machine: str, shape: Shape, quant: str) -> CostRange | None:
    """Costs of plain decoding and verification of a shape in a quantization, from what was timed of it on a machine.

    Nothing of a draft is in them. None where nothing of the shape was timed.
    """
    cuts: dict[int, tuple[Cut, Sequence[CalibrationPoint]]] = {}
    for (environment, key), points in evidence.passes.items():
        facts = evidence.models.get(key)
        if environment == machine and facts is not None and (cut := _cut_of(shape, quant, facts, points)) is not None:
            cuts[cut.n_layers] = (cut, points)
    if not cuts:
        return None
    full = from_shape(shape, quant=quant).weight
    depths = (shape.n_layers,) if shape.n_layers in cuts else tuple(sorted(cuts))
    passes, timed = full_depth([cuts[n][0] for n in depths], full), cuts[depths[-1]][1]
    growth = shape.n_layers / depths[-1]  # of what a round does beside its passes: recurrent states, mostly
    source = "synthetic weights of this shape timed on this machine"
    if depths[-1] < shape.n_layers:
        layers = " and ".join(map(str, depths))
        source = f"{layers} of {shape.n_layers} layers timed on this machine, scaled to all"
    return known_costs(
        Costs(
            verify_ms={k: found.ms for k, found in passes.items()},
            rest_ms={k: ms * growth for k, ms in costs_from_points(timed).rest_ms.items()},
        ),
        statistics.median(found.relative_error for found in passes.values()),
        f"{quant}, {source}",
        "shape",
        is_mixture=bool(full.n_experts),
        depths=depths,
        checkpoint_ms=growth * statistics.median([p.span_ns / 1e6 for p in timed if p.kind == "checkpoint"] or [0.0]),
    )


def pair_costs(target: CostRange, draft: CostRange) -> CostRange:
    """Costs of a target with a draft that was timed by itself: each proposal is one of its single passes.

    A recurrent draft of g proposals, two or more, saves its state g - 1 times and loads it once: half of what saving
    and loading take, g times.
    """
    alone, steps = target.high, draft.high.verify_ms
    rest = {k: ms + (draft.checkpoint_ms * (k - 1) / 2 if k > 2 else 0.0) for k, ms in alone.rest_ms.items()}
    costs = Costs(verify_ms=alone.verify_ms, catch_up_ms=steps, step_ms=steps[1], rest_ms=rest)
    return replace(target, low=costs, high=costs, draft_source=draft.source)


def _cut_of(shape: Shape, quant: str, facts: ModelFacts, points: Sequence[CalibrationPoint]) -> Cut | None:
    """The timed model as a depth of the shape; None when its bytes say that it is another one."""
    n_layers = facts.n_layers or 0
    same = (facts.architecture, facts.n_embd) == (shape.architecture, shape.n_embd)
    if not same or not 1 <= n_layers <= shape.n_layers:
        return None
    try:
        weight = from_shape(shape, quant=quant, n_layers=n_layers).weight
        times = costs_from_points(points).verify_ms
    except (InputError, AnalysisError):  # a depth that cannot be, or a model that was timed as a draft only
        return None
    if (weight.total.n_bytes, weight.active.n_bytes) != (facts.weight_bytes, facts.active_bytes):
        return None
    return Cut(n_layers=n_layers, weight=weight, ms=times, relative_error=relative_error(points, _UNKNOWN_ERROR))

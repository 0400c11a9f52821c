"""Costs of a model that nobody has here, from calibrations of synthetic models of its shape, whole or cut in depth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from mlsd.analysis.fits.calibration import relative_error
from mlsd.analysis.predict.arms import Known
from mlsd.analysis.predict.depth import Cut, full_depth
from mlsd.analysis.predict.predict import Costs, costs_from_points
from mlsd.errors import AnalysisError, InputError
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.records import ModelFacts, Record
from mlsd.store.rows import CalibrationPoint

_UNKNOWN_ERROR = 0.05  # of a pass that was timed too seldom to have an interval


class ShapeCosts(Record, frozen=True, kw_only=True):
    """What passes of a shape at full depth cost, and from which depths that is known."""

    costs: Costs  # of plain decoding and verification; nothing of a draft
    relative_error: float  # standard error of a pass
    depths: tuple[int, ...]  # layers of the models that were timed
    n_layers: int  # of the shape
    checkpoint_ms: float  # to save and load the recurrent state; 0 without one

    @property
    def source(self) -> str:
        timed = " and ".join(map(str, self.depths))
        if self.depths[-1] == self.n_layers:
            return "synthetic weights of this shape timed on this machine"
        return f"{timed} of {self.n_layers} layers timed on this machine, scaled to all"


def shape_costs(known: Known, machine: str, shape: Shape, quant: str) -> ShapeCosts | None:
    """Costs of a shape in a quantization, from what was timed of it on a machine; None of nothing."""
    full = from_shape(shape, quant=quant).weight
    cuts: dict[int, tuple[Cut, Costs, Sequence[CalibrationPoint]]] = {}
    for (environment, key), points in known.passes.items():
        facts = known.models.get(key)
        if environment != machine or facts is None or not facts.n_layers:
            continue
        cut = _cut_of(shape, quant, facts, points)
        if cut is not None:
            cuts[cut.n_layers] = (cut, costs_from_points(points), points)
    if not cuts:
        return None
    depths = (shape.n_layers,) if shape.n_layers in cuts else tuple(sorted(cuts))
    passes = full_depth([cuts[n][0] for n in depths], full)
    _, deepest, timed = cuts[depths[-1]]
    growth = shape.n_layers / depths[-1]  # of what a round does beside its passes: recurrent states, mostly
    return ShapeCosts(
        costs=Costs(
            verify_ms={k: found.ms for k, found in passes.items()},
            rest_ms={k: ms * growth for k, ms in deepest.rest_ms.items()},
        ),
        relative_error=statistics.median(found.relative_error for found in passes.values()),
        depths=depths,
        n_layers=shape.n_layers,
        checkpoint_ms=growth * statistics.median([p.span_ns / 1e6 for p in timed if p.kind == "checkpoint"] or [0.0]),
    )


def pair_costs(target: ShapeCosts, draft: ShapeCosts) -> Costs:
    """Costs of a target with a draft that was timed by itself: each proposal is one of its single passes.

    A recurrent draft of g proposals, two or more, saves its state g - 1 times and loads it once: half of what saving
    and loading take, g times.
    """
    steps = draft.costs.verify_ms
    rest = {k: ms + (draft.checkpoint_ms * (k - 1) / 2 if k > 2 else 0.0) for k, ms in target.costs.rest_ms.items()}
    return Costs(verify_ms=target.costs.verify_ms, catch_up_ms=steps, step_ms=steps[1], rest_ms=rest)


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

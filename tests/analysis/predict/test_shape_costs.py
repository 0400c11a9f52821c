"""Costs of a shape from calibrations of synthetic models of it."""

from __future__ import annotations

import pytest

from mlsd.analysis.predict.arms import Known
from mlsd.analysis.predict.shape_costs import pair_costs, shape_costs
from mlsd.gguf_tools.shapes import FULL
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.records import ModelFacts, ModelRef
from mlsd.store.rows import CalibrationPoint, PassKind

SHAPE, SMALL = FULL["qwen3.5-9b"], FULL["qwen3.5-0.8b"]


def facts(name: str, n_layers: int | None = None, quant: str = "Q8_0") -> ModelFacts:
    plan = from_shape(FULL[name], quant=quant, n_layers=n_layers)
    return ModelFacts(
        ref=ModelRef(id=f"{name}-{plan.n_layers}-{quant}"),
        architecture=plan.architecture,
        n_layers=plan.n_layers,
        n_embd=FULL[name].n_embd,
        weight_bytes=plan.weight.total.n_bytes,
        active_bytes=plan.weight.active.n_bytes,
    )


def points(key: str, ns_per_byte: float, n_bytes: int, noise: float = 0.0) -> tuple[CalibrationPoint, ...]:
    def point(kind: PassKind, rows: int, repeat: int, ms: float) -> CalibrationPoint:
        return CalibrationPoint(model_key=key, kind=kind, rows=rows, depth=64, repeat=repeat, span_ns=round(ms * 1e6))

    made = []
    for repeat in range(3):
        shift = 1 + noise * (repeat - 1)
        for rows in (1, 2, 5):
            made.append(
                point("target_pass", rows, repeat, ns_per_byte * n_bytes / 1e6 * (1 + 0.1 * (rows - 1)) * shift)
            )
        made += [
            point("checkpoint", 0, repeat, 2.0),
            point("sample", 1, repeat, 0.1),
            point("rollback", 5, repeat, 0.4),
        ]
    return tuple(made)


def known(*models: ModelFacts, machine: str = "here") -> Known:
    return Known(
        groups=(),
        passes={(machine, m.ref.id): points(m.ref.id, 0.1, m.active_bytes or 0, 0.01) for m in models},
        coverage={},
        models={m.ref.id: m for m in models},
    )


def test_depths_of_the_shape_are_found_by_their_bytes_and_nothing_else_is() -> None:
    stored = known(
        facts("qwen3.5-9b", 4), facts("qwen3.5-9b", 8), facts("qwen3.5-9b", 12, "Q4_0"), facts("qwen3.5-0.8b")
    )
    found = shape_costs(stored, "here", SHAPE, "Q8_0")
    assert found is not None
    assert found.depths == (4, 8)
    assert found.source == "4 and 8 of 32 layers timed on this machine, scaled to all"
    full = facts("qwen3.5-9b").active_bytes or 0
    assert found.costs.verify_ms[1] == pytest.approx(0.1e-6 * full, rel=0.02)
    assert found.checkpoint_ms == pytest.approx(2.0 * 32 / 8)
    assert shape_costs(stored, "elsewhere", SHAPE, "Q8_0") is None
    assert shape_costs(stored, "here", SHAPE, "Q6_K") is None


def test_a_model_of_the_whole_depth_is_taken_alone() -> None:
    found = shape_costs(known(facts("qwen3.5-9b", 4), facts("qwen3.5-9b")), "here", SHAPE, "Q8_0")
    assert found is not None
    assert found.depths == (32,)
    assert "synthetic weights of this shape" in found.source


def test_a_draft_timed_alone_proposes_with_single_passes_and_climbs_a_ladder() -> None:
    stored = known(facts("qwen3.5-9b", 4), facts("qwen3.5-0.8b"))
    target, draft = shape_costs(stored, "here", SHAPE, "Q8_0"), shape_costs(stored, "here", SMALL, "Q8_0")
    assert target is not None and draft is not None
    costs = pair_costs(target, draft)
    assert costs.step_ms == draft.costs.verify_ms[1]
    assert not costs.replays
    assert costs.rest_ms[5] == pytest.approx(target.costs.rest_ms[5] + 2 * draft.checkpoint_ms)
    assert costs.rest_ms[2] == pytest.approx(target.costs.rest_ms[2])

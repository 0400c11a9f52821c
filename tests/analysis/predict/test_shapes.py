"""Costs of a shape from calibrations of synthetic models of it, and T(k) at full depth on machines of known laws."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.analysis.predict.evidence import Evidence
from mlsd.analysis.predict.shapes import Cut, full_depth, pair_costs, shape_costs
from mlsd.gguf_tools.read import ModelWeight
from mlsd.gguf_tools.shape import FULL
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

    timed = []
    for repeat in range(3):
        shift = 1 + noise * (repeat - 1)
        for rows in (1, 2, 5):
            timed.append(
                point("target_pass", rows, repeat, ns_per_byte * n_bytes / 1e6 * (1 + 0.1 * (rows - 1)) * shift)
            )
        timed += [
            point("checkpoint", 0, repeat, 2.0),
            point("sample", 1, repeat, 0.1),
            point("rollback", 5, repeat, 0.4),
        ]
    return tuple(timed)


def evidence_of(*models: ModelFacts, machine: str = "here") -> Evidence:
    return Evidence(
        passes={(machine, m.ref.id): points(m.ref.id, 0.1, m.active_bytes or 0, 0.01) for m in models},
        models={m.ref.id: m for m in models},
    )


def test_depths_of_the_shape_are_found_by_their_bytes_and_nothing_else_is() -> None:
    stored = evidence_of(
        facts("qwen3.5-9b", 4), facts("qwen3.5-9b", 8), facts("qwen3.5-9b", 12, "Q4_0"), facts("qwen3.5-0.8b")
    )
    costs = shape_costs(stored, "here", SHAPE, "Q8_0")
    assert costs is not None
    assert costs.depths == (4, 8)
    assert costs.source == "Q8_0, 4 and 8 of 32 layers timed on this machine, scaled to all"
    full = facts("qwen3.5-9b").active_bytes or 0
    assert costs.high.verify_ms[1] == pytest.approx(0.1e-6 * full, rel=0.02)
    assert costs.checkpoint_ms == pytest.approx(2.0 * 32 / 8)
    assert shape_costs(stored, "elsewhere", SHAPE, "Q8_0") is None
    assert shape_costs(stored, "here", SHAPE, "Q6_K") is None


def test_a_model_of_the_whole_depth_is_taken_alone() -> None:
    costs = shape_costs(evidence_of(facts("qwen3.5-9b", 4), facts("qwen3.5-9b")), "here", SHAPE, "Q8_0")
    assert costs is not None
    assert costs.depths == (32,)
    assert "synthetic weights of this shape" in costs.source


def test_a_draft_timed_alone_proposes_with_single_passes_and_climbs_a_ladder() -> None:
    stored = evidence_of(facts("qwen3.5-9b", 4), facts("qwen3.5-0.8b"))
    target, draft = shape_costs(stored, "here", SHAPE, "Q8_0"), shape_costs(stored, "here", SMALL, "Q8_0")
    assert target is not None and draft is not None
    costs = pair_costs(target, draft).high
    assert costs.step_ms == draft.high.verify_ms[1]
    assert not costs.replays
    assert costs.rest_ms[5] == pytest.approx(target.high.rest_ms[5] + 2 * draft.checkpoint_ms)
    assert costs.rest_ms[2] == pytest.approx(target.high.rest_ms[2])


def weight(name: str, n_layers: int | None = None) -> ModelWeight:
    return from_shape(FULL[name], n_layers=n_layers).weight


def cut(name: str, n_layers: int, law: Callable[[int, ModelWeight], float], error: float = 0.01) -> Cut:
    weigh = weight(name, n_layers)
    return Cut(n_layers=n_layers, weight=weigh, ms={k: law(k, weigh) for k in (1, 2, 5, 9)}, relative_error=error)


def by_bytes(k: int, w: ModelWeight) -> float:
    return 0.3 + w.active.n_bytes / 1e7 * (1 + 0.2 * (k - 1))


def slow_head(k: int, w: ModelWeight) -> float:
    """A head that costs three times as much a byte as the layers."""
    return 150.0 * k + w.active.n_bytes / 1e7 * (1 + 0.2 * (k - 1))


@given(depths=st.sets(st.sampled_from([2, 4, 8, 12]), min_size=2, max_size=3))
def test_a_machine_that_reads_bytes_is_predicted_from_any_two_depths(depths: set[int]) -> None:
    full = weight("qwen3.5-4b")
    passes = full_depth([cut("qwen3.5-4b", n, by_bytes) for n in depths], full)
    for k in (1, 2, 5, 9):
        assert passes[k].ms == pytest.approx(by_bytes(k, full), rel=0.02)


def test_two_depths_see_a_slow_head_that_one_depth_cannot() -> None:
    full = weight("qwen3.5-4b")
    shallow = full_depth([cut("qwen3.5-4b", 4, slow_head)], full)[5]
    two = full_depth([cut("qwen3.5-4b", n, slow_head, error=0.001) for n in (4, 12)], full)[5]
    truth = slow_head(5, full)
    assert abs(two.ms / truth - 1) < abs(shallow.ms / truth - 1)
    assert shallow.relative_error >= 0.10


def test_one_depth_of_a_mixture_says_that_it_does_not_know_how_rows_add_up() -> None:
    passes = full_depth([cut("qwen3.5-35b-a3b", 4, by_bytes)], weight("qwen3.5-35b-a3b"))
    assert passes[9].relative_error > passes[1].relative_error
    assert passes[1].relative_error == pytest.approx(0.1, abs=0.01)


def test_depths_that_disagree_are_less_sure_than_either() -> None:
    full = weight("qwen3.5-4b")
    agree = full_depth([cut("qwen3.5-4b", n, by_bytes) for n in (4, 12)], full)[1]
    odd = [cut("qwen3.5-4b", 4, by_bytes), cut("qwen3.5-4b", 12, lambda k, w: 1.5 * by_bytes(k, w))]
    assert full_depth(odd, full)[1].relative_error > agree.relative_error


def test_the_whole_shape_is_taken_as_it_was_timed_and_no_pass_is_shorter_than_a_plain_one() -> None:
    full = weight("qwen3.5-4b")
    whole = Cut(n_layers=FULL["qwen3.5-4b"].n_layers, weight=full, ms={1: 7.0, 2: 8.0}, relative_error=0.02)
    passes = full_depth([cut("qwen3.5-4b", 4, by_bytes), whole], full)
    assert {k: one.ms for k, one in passes.items()} == {1: 7.0, 2: 8.0}
    noisy = Cut(n_layers=4, weight=weight("qwen3.5-4b", 4), ms={1: 10.0, 2: 8.0}, relative_error=0.1)
    passes = full_depth([noisy], full)
    assert passes[2].ms == passes[1].ms

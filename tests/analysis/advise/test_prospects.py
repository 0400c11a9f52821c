"""Recommendation on costs and acceptance that are known, where the right answer can be worked out."""

from __future__ import annotations

import msgspec
import pytest

from mlsd.analysis.advise.prospects import CostRange, as_measured, prospects, recommend
from mlsd.analysis.advise.reference_acceptance import Acceptance, assumed_acceptance, reference_acceptance
from mlsd.analysis.predict.arms import Known
from mlsd.analysis.predict.predict import Costs, tok_per_s
from mlsd.records import DRAFT_MODEL, DrafterSpec, ModelFacts, ModelRef
from tests.trials.made import result

DENSE = ModelFacts(
    ref=ModelRef(id="dense"), architecture="qwen35", n_layers=32, active_bytes=8_000_000_000, weight_bytes=9_000_000_000
)
DRAFT = ModelFacts(
    ref=ModelRef(id="small"), architecture="qwen35", n_layers=24, active_bytes=800_000_000, weight_bytes=900_000_000
)


def cost_range(verify: dict[int, float], step: float = 0.0, rest: float = 0.0, **changes: object) -> CostRange:
    costs = Costs(verify_ms=verify, catch_up_ms={1: step} if step else {}, step_ms=step, rest_ms={1: rest})
    settings = {"relative_error": 0.01, "source": "test", "basis": "calibration", "is_mixture": False, **changes}
    return CostRange(low=costs, high=costs, **settings)  # type: ignore[arg-type]


def accepting(*alphas: float, error: float = 0.01) -> Acceptance:
    return Acceptance(drafter=DRAFT_MODEL, draft="d", alphas=alphas, relative_error=error, source="stated")


KEY = (DRAFT_MODEL, "d")
NOTHING = Known(groups=(), passes={}, coverage={}, models={})


def test_free_drafts_and_flat_passes_make_long_gammas_best() -> None:
    costs = cost_range({1: 10.0, 5: 10.0, 9: 10.0})
    found = prospects({KEY: costs}, costs, [accepting(0.9)], (4, 8))
    assert [p.gamma for p in found] == [8, 4, 0]
    assert found[0].speedup.value == pytest.approx(sum(0.9**i for i in range(9)))
    assert found[0].decided_by == "acceptance"


def test_a_slow_draft_makes_off_the_best_and_is_named() -> None:
    plain = cost_range({1: 10.0, 5: 11.0})
    found = prospects({KEY: cost_range({1: 10.0, 5: 11.0}, step=9.0)}, plain, [accepting(0.8)], (4,))
    assert found[0].gamma == 0
    assert found[0].speedup.value == 1.0
    assert found[1].decided_by == "draft time"
    assert found[1].without_it > 1 > found[1].speedup.value
    assert found[1].break_even_mgl > found[1].mgl


def test_verification_is_blamed_on_experts_or_on_a_kernel_step() -> None:
    verify = {1: 10.0, 5: 48.0}
    for changes, name in (
        ({"is_mixture": True}, "expert coverage"),
        ({"steps": (4,)}, "kernel step"),
        ({"steps": (9,)}, "verification"),
    ):
        costs = cost_range(verify, **changes)
        found = prospects({KEY: costs}, cost_range(verify), [accepting(0.97)], (4,))
        assert next(p for p in found if p.gamma).decided_by == name


def test_a_drafter_of_assumed_acceptance_is_the_choice_only_where_it_is_always_faster() -> None:
    for step, verdict in ((0.5, "on"), (3.0, "not decided yet"), (30.0, "off")):
        costs = cost_range({1: 10.0, 5: 12.0}, step=step, basis="bandwidth")
        ranged = msgspec.structs.replace(accepting(0.7), least_alpha=0.5, most_alpha=0.9)
        found = prospects({KEY: costs}, costs, [ranged], (4,))
        speculative = next(p for p in found if p.gamma)
        assert speculative.acceptance_assumed
        ends = []
        for alpha in (0.5, 0.9):
            (certain,) = (p for p in prospects({KEY: costs}, costs, [accepting(alpha, error=0.0)], (4,)) if p.gamma)
            ends.append(certain.speedup.value)
        low, high = speculative.speedup.low or 0, speculative.speedup.high or 0
        assert low < ends[0] < speculative.speedup.value < ends[1] < high
        advice = recommend("t", None, found, costs, ["acceptance"])
        assert advice.verdict == verdict and advice.best.gamma == (4 if verdict == "on" else 0)
        assert len(advice.to_measure) == (1 if verdict == "not decided yet" else 0)
    assert reference_acceptance("qwen3.5-35b-a3b")[0].least_alpha is None
    assumed = assumed_acceptance("qwen3.5-35b-a3b-q8_0")
    assert {a.draft for a in assumed} == {"qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b"}
    assert all(a.least_alpha is not None and a.least_alpha < a.alphas[0] < (a.most_alpha or 0) for a in assumed)
    assert assumed_acceptance("unheard-of") == []


def test_acceptance_for_break_even_gives_a_speedup_of_one() -> None:
    costs = cost_range({1: 10.0, 3: 14.0}, step=2.0)
    (p,) = (p for p in prospects({KEY: costs}, costs, [accepting(0.9)], (2,)) if p.gamma)
    assert p.break_even_acceptance is not None
    even = tok_per_s(costs.low, {(2, 2): p.break_even_acceptance, (2, 0): 1 - p.break_even_acceptance})
    assert even == pytest.approx(tok_per_s(costs.low, {(0, 0): 1.0})), "accepted over proposed tokens"
    slow = cost_range({1: 10.0, 3: 14.0}, step=20.0)
    (never,) = (p for p in prospects({KEY: slow}, costs, [accepting(0.9)], (2,)) if p.gamma)
    assert never.break_even_acceptance is None


def test_on_a_machine_where_the_target_was_timed_only_what_ran_is_recommended() -> None:
    costs = cost_range({1: 10.0, 5: 10.0, 9: 10.0})
    found = prospects({KEY: costs}, costs, [accepting(0.9)], (4, 8))
    assert all((p.speedup.low or 0) > 2 for p in found if p.gamma), "predicted to be faster, for sure"
    advice = recommend("t", "code", found, costs)
    assert advice.verdict == "not decided yet" and advice.best.gamma == 0 and advice.to_measure[0].gamma == 8
    assert "--gamma 4,8 --prompt code --until decided" in advice.next_steps[0]
    drafter = DrafterSpec(name=DRAFT_MODEL, draft=ModelRef(id="d"))
    ran = result(1.2, 1.5, 1.9, spec=drafter, tok_s=120.0, plain_tok_s=80.0)
    advice = recommend("t", "code", as_measured(found, [ran]), costs)
    assert (advice.verdict, advice.best.gamma, advice.best.speedup) == ("on", 4, ran.ratio)
    assert {p.gamma: p.tok_s.value for p in advice.prospects if p.effect} == {0: 80.0, 4: 120.0}
    unsure = result(0.6, 0.88, 1.3, spec=drafter)
    shown = next(p for p in as_measured(found, [unsure]) if p.gamma == 4)
    assert (shown.speedup.value, shown.effect) == (0.88, "not decided yet"), "what was measured, not what was predicted"


def test_shipped_references_know_the_tiny_family_and_the_large_mixture() -> None:
    (tiny,) = reference_acceptance("tiny-moe")
    assert tiny.draft == "tiny-draft"
    assert len(tiny.alphas) == 4
    assert reference_acceptance("tiny-moe-q4_0")[0].alphas == tiny.alphas
    (large,) = reference_acceptance("Qwen3.5-35B-A3B-Q8_0")
    assert 0.6 < large.alphas[0] < 0.8
    assert reference_acceptance("unheard-of") == []

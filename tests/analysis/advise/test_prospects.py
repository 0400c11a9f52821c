"""Recommendation on costs and acceptance that are known, where the right answer can be worked out."""

from typing import Any

import pytest
from msgspec.structs import replace

from mlsd.analysis.advise.acceptance import (
    FAULT_WORDS,
    PLAIN_ARM,
    Acceptance,
    Stated,
    known_acceptances,
    outcomes_rate,
)
from mlsd.analysis.advise.prospects import RequestSize, as_measured, prospects, recommend, with_request
from mlsd.analysis.predict.costs import CostRange, Costs, mgl_of, outcomes, tok_per_s
from mlsd.errors import InputError
from mlsd.records import DRAFT_MODEL, DrafterSpec, ModelRef
from mlsd.trials.arms import arm_named
from mlsd.trials.results import ArmResult
from tests.trials.made import result

KEY = arm_named(DRAFT_MODEL, "d")


def cost_range(verify: dict[int, float], step: float = 0.0, rest: float = 0.0, **changes: object) -> CostRange:
    costs = Costs(verify_ms=verify, catch_up_ms={1: step} if step else {}, step_ms=step, rest_ms={1: rest})
    settings = {"relative_error": 0.01, "source": "test", "basis": "calibration", "is_mixture": False, **changes}
    return CostRange(low=costs, high=costs, **settings)  # type: ignore[arg-type]


def accepting(*alphas: float, error: float = 0.01) -> Acceptance:
    return Acceptance(arm=KEY, alphas=alphas, relative_error=error, source="stated")


def test_free_drafts_and_flat_passes_make_long_gammas_best() -> None:
    costs = cost_range({1: 10.0, 5: 10.0, 9: 10.0})
    predicted = prospects({PLAIN_ARM: costs, KEY: costs}, [accepting(0.9)], (4, 8))
    assert [p.gamma for p in predicted] == [8, 4, 0]
    assert predicted[0].speedup.value == pytest.approx(sum(0.9**i for i in range(9)))
    assert predicted[0].decided_by == "acceptance"


def test_a_slow_draft_makes_off_the_best_and_is_named() -> None:
    plain = cost_range({1: 10.0, 5: 11.0})
    predicted = prospects({PLAIN_ARM: plain, KEY: cost_range({1: 10.0, 5: 11.0}, step=9.0)}, [accepting(0.8)], (4,))
    assert predicted[0].gamma == 0
    assert predicted[0].speedup.value == 1.0
    assert predicted[1].decided_by == "draft time"
    assert predicted[1].without_it > 1 > predicted[1].speedup.value
    assert predicted[1].break_even_mgl > predicted[1].mgl


def test_verification_is_blamed_on_experts_or_on_a_kernel_step() -> None:
    verify = {1: 10.0, 5: 48.0}
    for changes, name in (
        ({"is_mixture": True}, "expert coverage"),
        ({"steps": (4,)}, "kernel step"),
        ({"steps": (9,)}, "verification"),
    ):
        costs = cost_range(verify, **changes)
        predicted = prospects({PLAIN_ARM: cost_range(verify), KEY: costs}, [accepting(0.97)], (4,))
        assert next(p for p in predicted if p.gamma).decided_by == name


def test_a_drafter_of_assumed_acceptance_is_the_choice_only_where_it_is_always_faster() -> None:
    for step, verdict in ((0.5, "on"), (3.0, "not decided yet"), (30.0, "off")):
        costs = cost_range({1: 10.0, 5: 12.0}, step=step, basis="bandwidth")
        ranged = replace(accepting(0.7), assumed=(0.5, 0.9))
        predicted = prospects({PLAIN_ARM: costs, KEY: costs}, [ranged], (4,))
        speculative = next(p for p in predicted if p.gamma)
        assert speculative.acceptance_assumed
        ends = []
        for alpha in (0.5, 0.9):
            (certain,) = (
                p for p in prospects({PLAIN_ARM: costs, KEY: costs}, [accepting(alpha, error=0.0)], (4,)) if p.gamma
            )
            ends.append(certain.speedup.value)
        low, high = speculative.speedup.low or 0, speculative.speedup.high or 0
        assert low < ends[0] < speculative.speedup.value < ends[1] < high
        advice = recommend("t", None, predicted, costs)
        assert advice.verdict == verdict and advice.best.gamma == (4 if verdict == "on" else 0)
        assert len(advice.to_measure) == (1 if verdict == "not decided yet" else 0)


def test_acceptance_for_break_even_gives_a_speedup_of_one() -> None:
    costs = cost_range({1: 10.0, 3: 14.0}, step=2.0)
    (p,) = (p for p in prospects({PLAIN_ARM: costs, KEY: costs}, [accepting(0.9)], (2,)) if p.gamma)
    assert p.break_even_acceptance is not None
    even = tok_per_s(costs.low, {(2, 2): p.break_even_acceptance, (2, 0): 1 - p.break_even_acceptance})
    assert even == pytest.approx(tok_per_s(costs.low, {(0, 0): 1.0})), "accepted over proposed tokens"
    slow = cost_range({1: 10.0, 3: 14.0}, step=20.0)
    (never,) = (p for p in prospects({PLAIN_ARM: costs, KEY: slow}, [accepting(0.9)], (2,)) if p.gamma)
    assert never.break_even_acceptance is None


def test_on_a_machine_where_the_target_was_timed_only_what_ran_is_recommended() -> None:
    costs = cost_range({1: 10.0, 5: 10.0, 9: 10.0})
    predicted = prospects({PLAIN_ARM: costs, KEY: costs}, [accepting(0.9)], (4, 8))
    assert all((p.speedup.low or 0) > 2 for p in predicted if p.gamma), "predicted to be faster, for sure"
    advice = recommend("t", "code", predicted, costs)
    assert advice.verdict == "not decided yet" and advice.best.gamma == 0 and advice.to_measure[0].gamma == 8
    assert [p.gamma for p in advice.to_measure] == [8, 4]
    drafter = DrafterSpec(name=DRAFT_MODEL, draft=ModelRef(id="d"))
    ran = result(1.2, 1.5, 1.9, spec=drafter, tok_s=120.0, plain_tok_s=80.0)
    advice = recommend("t", "code", as_measured(predicted, [ran]), costs)
    assert (advice.verdict, advice.best.gamma, advice.best.speedup) == ("on", 4, ran.ratio)
    assert {p.gamma: p.tok_s.value for p in advice.prospects if p.effect} == {0: 80.0, 4: 120.0}
    unsure = result(0.6, 0.88, 1.3, spec=drafter)
    shown = next(p for p in as_measured(predicted, [unsure]) if p.gamma == 4)
    assert (shown.speedup.value, shown.effect) == (0.88, "not decided yet"), "what was measured, not what was predicted"


def test_shipped_references_know_the_tiny_family_and_drafts_of_large_targets() -> None:
    tiny = [a for a in known_acceptances("tiny-moe") if a.arm == arm_named(DRAFT_MODEL, "tiny-draft")]
    assert tiny and all(1 < mgl_of(a.outcomes(4)) < 5 for a in tiny)
    assert known_acceptances("tiny-moe-q4_0") == known_acceptances("tiny-moe")
    acceptances = known_acceptances("Qwen3.5-35B-A3B-Q8_0")
    measured, assumed = ([a for a in acceptances if (a.assumed is None) == own] for own in (True, False))
    draft = next(a for a in measured if a.arm == arm_named(DRAFT_MODEL, "qwen3.5-0.8b"))
    assert mgl_of(draft.outcomes(1)) == pytest.approx(1.697) and "2026" in draft.source
    assert {a.arm.method for a in measured} == {"mtp", DRAFT_MODEL}
    assert {a.arm.draft.id for a in assumed if a.arm.draft} == {"qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b"}
    assert all(a.assumed is not None and a.assumed[0] < a.alphas[0] < a.assumed[1] for a in assumed)
    assert known_acceptances("unheard-of") == []


def ran(text: str, low: float, value: float, high: float) -> ArmResult:
    """A look-up with an option, measured on a text."""
    spec = DrafterSpec(name="pld", options={"ngram": 3})
    return result(low, value, high, text=text, spec=spec, tok_s=100 * value, plain_tok_s=100.0)


@pytest.mark.parametrize(
    ("texts", "effect", "bounds"),
    [
        ([("code", 1.5, 1.7, 1.9), ("prose", 1.2, 1.3, 1.4)], "faster", (1.2, 1.9)),
        ([("code", 1.5, 1.7, 1.9), ("prose", 0.5, 0.6, 0.7)], "not decided yet", (0.5, 1.9)),
        ([("code", 1.5, 1.7, 1.9)], "faster", (1.5, 1.9)),
    ],
)
def test_a_setting_with_options_is_decided_where_every_text_decides_it_alike(
    texts: list[tuple[str, float, float, float]], effect: str, bounds: tuple[float, float]
) -> None:
    arm, costs = arm_named("pld", None, '{"ngram":3}'), cost_range({1: 10.0, 5: 12.0})
    acceptance = Acceptance(arm=arm, measured={4: outcomes((0.5,), 4, 0.5)}, source="rounds")
    settings = as_measured(
        prospects({PLAIN_ARM: costs, arm: costs}, [acceptance], (4,)), [ran(*setting) for setting in texts]
    )
    (setting,) = (p for p in settings if p.gamma)
    assert (setting.effect, (setting.speedup.low, setting.speedup.high)) == (effect, bounds)
    assert (setting.name, setting.option({})) == ("pld (ngram 3)", "--drafter pld:ngram=3")


def test_rounds_of_a_look_up_that_propose_nothing_cost_a_plain_pass() -> None:
    costs = cost_range({1: 10.0, 5: 30.0, 17: 100.0})
    seldom = Acceptance(arm=arm_named("pld"), measured={4: outcomes((0.9,), 4, 0.05)}, source="rounds")
    by_gamma = {p.gamma: p for p in prospects({PLAIN_ARM: costs, seldom.arm: costs}, [seldom], (1, 4, 16))}
    assert by_gamma[1].mgl == pytest.approx(1 + 0.05 * 0.9)
    assert by_gamma[16].speedup.value > 0.6, "not a tenth, as if each round verified 17 rows"


def test_what_pays_at_any_acceptance_is_not_said_to_pay_at_none() -> None:
    costs = cost_range({1: 10.0, 5: 9.0})
    (setting,) = (p for p in prospects({PLAIN_ARM: costs, KEY: costs}, [accepting(0.5)], (4,)) if p.gamma)
    assert setting.break_even_mgl < 1 and setting.break_even_acceptance == 0
    settles = recommend("t", None, [setting, *prospects({PLAIN_ARM: costs}, [], ())], costs).settles
    assert settles is not None and "pays whatever is accepted" in settles


def test_a_request_pays_from_the_token_that_has_made_up_for_the_drafts_reading() -> None:
    plain = cost_range({1: 10.0, 5: 10.0}, prefill_ms=1.0)
    costs = {PLAIN_ARM: plain, KEY: replace(plain, prefill_ms=1.5)}
    asked = RequestSize(prompt_tokens=1000, n_predict=101)
    predicted = prospects(costs, [accepting(0.5, error=0.0)], (4,))
    timed = {p.gamma: p for p in with_request(predicted, asked, costs)}
    off, on = timed[0].request, timed[4].request
    assert off is not None and on is not None and off.whole_s is not None and on.whole_s is not None
    assert (off.ttft_s, off.whole_s.value, off.pays_from) == (1.0, pytest.approx(2.0), None)
    assert on.ttft_s == 1.5
    gained_ms = 10 * (1 - 1 / timed[4].speedup.value)
    assert on.pays_from == 2 + int(500 / gained_ms)
    slow, fast = ((n - 1) * ms for n, ms in ((on.pays_from, 10.0), (on.pays_from, 10 - gained_ms)))
    assert 1500 + fast <= 1000 + slow, "at that token it is ahead"
    silent = {PLAIN_ARM: plain, KEY: cost_range({1: 10.0})}
    unknown = with_request(prospects(silent, [accepting(0.5)], (4,)), asked, silent)
    assert all(p.request is not None and (p.request.whole_s is None) == (p.gamma == 4) for p in unknown)


def test_what_a_look_up_accepts_is_asked_with_the_length_of_its_answer() -> None:
    """140 of 245 tokens in an answer of 256 are 116 rounds, so 2.2 tokens a round: not 3.29."""
    counts = Stated(gamma=4, counts=(140, 245))
    assert mgl_of(counts.of(KEY).outcomes(4)) == pytest.approx(1 + 4 * 140 / 245, rel=1e-3)
    with pytest.raises(InputError, match="proposes in some rounds only"):
        counts.of(arm_named("pld"))
    for arm in (KEY, arm_named("pld"), arm_named("mtp", None, '{"p_min":0.75}')):
        stated = Stated(gamma=4, counts=(140, 245), n_output=256).of(arm)
        assert mgl_of(stated.outcomes(4)) == pytest.approx(256 / 116, rel=1e-3)
        assert outcomes_rate(stated.outcomes(4)) == pytest.approx(140 / 245, rel=1e-3)


def test_the_last_round_may_run_over_the_end_of_an_answer() -> None:
    """370 tokens proposed at gamma 5 are 74 rounds, one of which wrote past the 190th token."""
    ends = Stated(gamma=5, counts=(117, 370), n_output=190).of(KEY).outcomes(5)
    assert mgl_of(ends) == pytest.approx(1 + 117 / 74, rel=1e-3)


@pytest.mark.parametrize("stated", [{"rate": 1.2}, {"mgl": 6.0}, {"counts": (1, 0)}, {"counts": (9, 8)},
                                    {"counts": (140, 245), "n_output": 140}])  # fmt: skip
def test_what_no_round_can_have_is_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="No round at gamma 4"):
        Stated(gamma=4, **stated)


def test_a_native_head_below_one_half_at_depth_one_is_called_a_fault() -> None:
    assert FAULT_WORDS in Stated(gamma=1, rate=0.34).of(arm_named("mtp")).source
    assert FAULT_WORDS not in Stated(gamma=1, rate=0.77).of(arm_named("mtp")).source
    assert FAULT_WORDS not in Stated(gamma=4, rate=0.34).of(arm_named("mtp")).source


def test_a_look_up_is_needed_to_be_right_of_what_it_proposes_not_of_what_it_might() -> None:
    costs = cost_range({1: 10.0, 5: 16.0})
    seldom = Acceptance(arm=arm_named("pld"), measured={4: outcomes((0.5,), 4, 0.25)}, source="rounds")
    (setting,) = (p for p in prospects({PLAIN_ARM: costs, seldom.arm: costs}, [seldom], (4,)) if p.gamma)
    assert setting.break_even_acceptance == pytest.approx(0.15), (
        "a quarter of rounds pays 6 ms more, for 0.6 tokens of 4"
    )

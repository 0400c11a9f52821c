"""One record of an arm: what counts, what it is compared with, and what its session decides."""

import math
import random
from typing import Any

import msgspec
import pytest

from mlsd.records import Case, Conditions, DrafterSpec, EngineOptions, Losslessness, Status, Trial
from mlsd.report.tables.columns import of_arms
from mlsd.trials.on_or_off import answers
from mlsd.trials.results import ArmResult, Measured, SessionPlan, arm_results, memory_key, pooled_results, prefill_speed
from tests.analysis.studies import DENSE, MOE, as_measured, blocks, case, failed, lasting, trial

Made = list[tuple[Case, Trial]]
DIVERGED = {"status": Status.INVALID, "reason": "output differs", "losslessness": Losslessness(verdict="diverged")}
DISTURBED = {"status": Status.DISTURBED, "reason": "the worker waited"}
SUITE = SessionPlan(pool="workload")


def arms(made: Made, plan: SessionPlan = SUITE) -> list[ArmResult]:
    return [one for one in arm_results(as_measured(made), plan) if not one.is_plain]


def test_rounds_of_known_length_give_their_speedup_exactly() -> None:
    (found,) = arms(blocks(MOE, alpha=1.0, noise=0.0, gammas=(4,), prompts=("code",)))
    # 32 tokens with every draft accepted: six rounds of five tokens, then one of two.
    speedup = 32 * 10.06 / (6 * (4 + 14 + 0.16) + (1 + 11 + 0.16))
    assert found.ratio is not None and found.ratio.value == pytest.approx(speedup, rel=1e-6)
    assert found.ratio.low == pytest.approx(found.ratio.high, rel=1e-6)
    assert (found.effect, found.n_blocks, found.acceptance_rate) == ("faster", 3, 1.0)
    assert found.mgl == pytest.approx(32 / 7)


@pytest.mark.parametrize("plan", [SUITE, SUITE.pooled], ids=["each workload", "pooled"])
def test_two_columns_give_the_third_and_break_even_is_mgl_over_speedup(plan: SessionPlan) -> None:
    made = blocks(MOE, noise=0.1)
    for one in arms([m for i, m in enumerate(made) if i != 1], plan):  # a block that lacks an arm
        assert one.tok_s and one.plain_tok_s and one.ratio and one.mgl and one.break_even_mgl
        assert one.tok_s / one.plain_tok_s == pytest.approx(one.ratio.value, rel=1e-9)
        assert one.break_even_mgl == pytest.approx(one.mgl / one.ratio.value)
        assert one.acceptance_rate == pytest.approx(one.whole.accepted / one.whole.proposed)
        assert one.accepted_of_output == pytest.approx(one.whole.accepted / one.whole.committed)
        assert one.acceptance_by_position is not None and one.acceptance_by_position > one.acceptance_rate


def test_prompts_weigh_equally_in_the_speed_of_prefill() -> None:
    made = blocks(MOE, prompts=("code", "factual"), repeats=1) + blocks(MOE, prompts=("code",), repeats=2)
    fast = [(of, msgspec.structs.replace(t, prefill_ns=10**9 // (1 + 3 * (of.prompt.key == "code")))) for of, t in made]
    n_prompt = made[0][1].n_prompt or 0
    assert prefill_speed(as_measured(fast)) == pytest.approx(n_prompt * 2)


def test_drift_of_the_machine_cancels_within_blocks() -> None:
    made: Made = []
    for repeat, slow in enumerate((1, 3, 9)):
        for i, of in enumerate((case(MOE, "code"), case(MOE, "code", 4))):
            once = trial(of, 7, 0, i)
            made.append((of, msgspec.structs.replace(lasting(once, (once.decode_ns or 0) * slow), repeat=repeat)))
    (found,) = arms(made)
    assert found.ratio is not None and found.ratio.low == pytest.approx(found.ratio.high, rel=1e-4)


def _around(made: Made, decode_ms: float, ran: float, *, waiting: int = 99) -> list[Measured]:
    """Trials of so long, whose worker ran for this share of the first so many blocks, on a processor alone."""
    found = []
    for of, one in made:
        one, whole_ns = lasting(one, int(decode_ms * 1e6 / (1.5 if of.gamma else 1))), int(decode_ms * 1e6)
        ran_ns = int(whole_ns * (ran if one.repeat < waiting else 1.0))
        around = Conditions(generation_ns=whole_ns, processor_ns=ran_ns)
        found.append((of, msgspec.structs.replace(one, conditions=around)))
    return [one._replace(on_processor=True) for one in as_measured(found)]


def test_nothing_is_decided_where_every_trial_is_too_short_or_waited_for_the_processor() -> None:
    made = blocks(MOE, gammas=(4,), prompts=("code",), repeats=6)
    effects, lacking = {}, {}
    for name, rows in {
        "short": _around(made, 90.0, 1.0),
        "long": _around(made, 600.0, 1.0),
        "starved": _around(made, 600.0, 0.4),
        "starved twice": _around(made, 600.0, 0.4, waiting=2),
        "starved, 3 left": _around(made, 600.0, 0.4, waiting=4),
    }.items():
        (found,) = (one for one in arm_results(rows, SUITE) if not one.is_plain)
        assert found.standing is not None
        effects[name] = (found.effect, found.standing.doubt.partition(" (")[0])
        lacking[name] = (found.more_blocks, found.repeat_helps)
    assert effects == {
        "short": ("not decided yet", "each trial decoded for less than 100 ms"),
        "long": ("faster", ""),
        "starved": ("not decided yet", "6 of 6 blocks waited for the processor"),
        "starved twice": ("faster", ""),
        "starved, 3 left": ("not decided yet", "4 of 6 blocks waited for the processor"),
    }
    assert lacking == {
        "short": (None, False),
        "long": (None, False),
        "starved": (6, True),
        "starved twice": (None, False),
        "starved, 3 left": (2, True),
    }, "further blocks help where the processor may be free, not where a trial is too short"
    on_device = [one._replace(on_processor=False) for one in _around(made, 600.0, 0.4)]
    assert [one.effect for one in arm_results(on_device, SUITE) if not one.is_plain] == ["faster"]


def _mixed() -> Made:
    """Three gammas beside plain decoding in four blocks, where each thing that can go wrong with a trial did once."""
    status: dict[tuple[int, int], Any] = {(4, 0): DIVERGED, (8, 1): DISTURBED, (0, 2): DISTURBED}
    made = []
    for of, one in blocks(MOE, repeats=4, prompts=("code",), noise=0.05):
        one = msgspec.structs.replace(one, **status.get((of.gamma, one.repeat), {}))
        one = lasting(one, 50 * (one.decode_ns or 0)) if one.status is Status.DISTURBED else one
        made.append((of, failed(of, one.block, 3) if (of.gamma, one.repeat) == (16, 3) else one))
    return made


def test_a_disturbed_trial_counts_in_no_speed_and_a_wrong_one_leaves_the_arm_undecided() -> None:
    found = {one.case.gamma: one for one in arms(_mixed())}
    calm = {one.case.gamma: one for one in arms([(of, t) for of, t in _mixed() if t.valid])}
    assert (found[8].statuses, found[8].n_invalid) == ({"valid": 3, "disturbed": 1}, 0)
    assert found[8].verdict == "lossless"
    assert (found[8].tok_s, found[8].plain_tok_s) == (calm[8].tok_s, calm[8].plain_tok_s)
    assert (found[4].statuses, found[4].n_invalid) == ({"valid": 3, "invalid": 1}, 1)
    assert found[4].decision == "output differs"
    assert found[16].why_not == "the worker was killed"
    for gamma in (4, 16):
        assert found[gamma].standing is None and found[gamma].effect == "not decided yet"
        assert found[gamma].ratio is not None and found[gamma].ratio.low is None


def test_an_arm_without_a_valid_trial_shows_what_a_program_that_checks_nothing_prints() -> None:
    made = [(of, msgspec.structs.replace(t, **DIVERGED) if of.gamma == 4 else t) for of, t in _mixed()]
    found = next(one for one in arms(made) if one.case.gamma == 4)
    assert found.n_valid == 0 and found.n_invalid == 4 and found.ratio is not None and found.verdict == "diverged"


def test_without_valid_plain_decoding_beside_it_there_is_no_speedup() -> None:
    made = [(of, t if of.gamma else msgspec.structs.replace(t, **DIVERGED)) for of, t in blocks(MOE, gammas=(4,))]
    assert all(one.ratio is None and one.decision == "not compared" for one in arms(made))


def test_an_interval_pays_for_the_arms_that_were_planned_controls_left_out() -> None:
    own = blocks(MOE, prompts=("code",), gammas=(4,), noise=0.05)
    (alone,), (planned,) = arms(own), arms(own, msgspec.structs.replace(SUITE, n_arms={MOE.ref.id: 16}))
    assert alone.ratio and planned.ratio and alone.ratio.low and planned.ratio.low
    assert alone.ratio.value == planned.ratio.value and planned.ratio.low < alone.ratio.low
    oracle = DrafterSpec(name="oracle")
    counted = SessionPlan().count([of for of, _ in own] + [case(MOE, "code", 8, drafter=oracle)])
    assert counted.n_arms == {MOE.ref.id: 1}


def test_questions_are_prompts_of_a_bench_workloads_of_a_suite_and_all_of_a_search() -> None:
    made = blocks(MOE, gammas=(4,))
    for pool, wanted in (("prompt", 4), ("workload", 4), ("all", 1)):
        assert len(arms(made, SessionPlan(pool=pool))) == wanted  # type: ignore[arg-type]
    lengths = blocks(MOE, "F", prompts=("length-32", "length-64"), gammas=(4,))
    assert [one.text for one in arms(lengths)] == ["length-32", "length-64"], "exact lengths are never pooled alone"
    (pooled,) = [one for one in pooled_results(as_measured(made), SUITE) if not one.is_plain]
    assert pooled.text == "4 workloads pooled" and pooled.n_blocks == 12


def test_one_text_at_two_lengths_and_two_files_of_a_target_are_questions_apart() -> None:
    made = blocks(MOE, prompts=("code",), gammas=(4,))
    longer = blocks(MOE, prompts=("code",), gammas=(4,), n_predict=65)
    other = blocks(msgspec.structs.replace(MOE, ref=msgspec.structs.replace(MOE.ref, sha256="d" * 64)),
                   prompts=("code",), gammas=(4,))  # fmt: skip
    assert [one.question.n_predict for one in arms(made + longer)] == [33, 65]
    assert len(arms(made + other)) == 2


def test_threads_that_were_used_are_the_key_and_not_what_was_asked_for() -> None:
    auto, two = case(MOE, "code"), case(MOE, "code", engine=EngineOptions(n_threads=2))
    assert SessionPlan(n_threads=2).question(auto) == SessionPlan().question(two)
    assert SessionPlan(n_threads=1).question(auto) != SessionPlan().question(two)


def test_an_interval_that_holds_one_is_undecided_and_says_what_would_decide_it() -> None:
    rng, made = random.Random(1), Made()
    for repeat in range(4):
        for i, of in enumerate((case(MOE, "code"), case(MOE, "code", 4))):
            base = trial(case(MOE, "code"), repeat, repeat, 0)
            took = int((base.decode_ns or 0) * math.exp(rng.gauss(0, 0.1)))
            made.append((of, lasting(trial(of, repeat, repeat, i), took)))
    (found,) = arms(made)
    assert found.effect == "not decided yet" and found.standing is not None and found.standing.more_blocks


@pytest.mark.parametrize(("later_ms", "says"), [(0, ""), (900, "so a whole request of 33 tokens takes longer")])
def test_an_arm_tells_of_its_request_and_memory_and_the_answer_where_they_change_the_decision(
    later_ms: int, says: str
) -> None:
    made = blocks(DENSE, alpha=0.9, gammas=(4,), prompts=("code",))
    made = [(of, msgspec.structs.replace(t, draft_prefill_ns=later_ms * 10**6 if of.gamma else None)) for of, t in made]
    sized = {ref: msgspec.structs.replace(ref, n_bytes=10**6) for of, _ in made for ref in [of.target]}
    made = [(msgspec.structs.replace(of, target=sized[of.target]), t) for of, t in made]
    drafting = next(of for of, _ in made if of.gamma)
    (found,) = arms(made, SessionPlan(context_bytes={memory_key(drafting): 500}, limit_bytes=4 * 10**6))
    assert (found.first_token_ms, found.plain_first_token_ms) == pytest.approx((20.0 + later_ms, 20.0))
    assert found.request_s == pytest.approx((20.0 + later_ms) / 1e3 + 32 / (found.tok_s or 0))
    draft = drafting.drafter.draft
    assert found.memory_bytes == (None if draft is None or draft.n_bytes is None else 10**6 + 500 + draft.n_bytes)
    left = None if found.memory_bytes is None else 4 * 10**6 - found.memory_bytes
    assert found.memory_left_bytes == left and (
        left is None or of_arms("memory")[0].get(found) == "2.00 MB, 2.00 MB left"
    )
    assert found.pays_from is not None and (found.pays_from.value > 33) == bool(says)
    (answer,) = answers([found])
    assert (
        answer.use == "on"
        and says in answer.note
        and bool(says) == bool(answer.note)
        and answer.note in answer.sentence
    )


def test_an_answer_names_a_loop_and_an_arm_that_fails_each_time_keeps_no_off_open() -> None:
    loop = [
        (of, msgspec.structs.replace(t, tokens=(3, 4) * 16 + (3,)))
        for of, t in blocks(DENSE, alpha=0.9, gammas=(4,), prompts=("code",))
    ]
    (found,) = arms(loop, SessionPlan())
    assert found.n_loops == 3 and "its output repeats itself" in answers([found])[0].sentence
    made = blocks(DENSE, alpha=0.1, gammas=(4, 8), prompts=("code",))
    lost = [(of, failed(of, t.block, t.repeat, "no memory") if of.gamma == 8 else t) for of, t in made]
    (answer,) = answers(arms(lost, SessionPlan()))
    assert answer.use == "off" and answer.sentence.endswith("; failed each time: tiny-draft, gamma 8: no memory")


def test_what_is_not_valid_pays_nowhere_and_takes_no_time() -> None:
    unchecked = {"status": Status.INVALID, "reason": "unchecked"}
    made = blocks(DENSE, alpha=0.9, gammas=(4,), prompts=("code",))
    made = [(of, msgspec.structs.replace(t, **(unchecked if of.gamma else {}))) for of, t in made]
    (found,) = arms(made, SessionPlan())
    assert found.tok_s is not None
    assert (found.request_s, found.pays_from) == (None, None)

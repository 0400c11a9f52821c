"""Races: what goes on after a block, what drops out, and when it ends."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import pytest

from mlsd.measure.parent.race import Race
from mlsd.planning.job import Block, Slot, blocks_of
from mlsd.planning.options import Goal
from mlsd.records import Case, Conditions, DrafterSpec, Status, Trial
from mlsd.trials.arms import arm_of
from mlsd.trials.decisions import Decision
from mlsd.trials.intervals import Stopping
from mlsd.trials.results import Measured, SessionPlan
from mlsd.trials.stages import StageTime
from tests.analysis.studies import as_measured
from tests.measure.examples import case, trial

GAINS = {0: 1.0, 1: 1.2, 2: 1.6, 4: 1.5, 8: 0.8, 16: 0.5}
PASS_NS = 10**9


def arm(gamma: int, prompt: str = "code") -> Case:
    base = case(gamma, drafter=DrafterSpec(name="pld" if gamma else "none"))
    return msgspec.structs.replace(base, prompt=msgspec.structs.replace(base.prompt, key=prompt))


def planned_blocks(
    n_blocks: int, prompts: Sequence[str] = ("code",), gammas: Sequence[int] = tuple(GAINS)
) -> list[Block]:
    planned = [(block, prompt, gamma) for block in range(n_blocks) for prompt in prompts for gamma in gammas]
    cases = [(block, 10 * block + prompts.index(prompt), arm(gamma, prompt)) for block, prompt, gamma in planned]
    slots = [Slot(case=own, case_id=own.id, block=number, repeat=block, position=0) for block, number, own in cases]
    return list(blocks_of(slots))


def measured(slot: Slot, noise: float = 0.0, **changes: object) -> Trial:
    slow = 1.0 + noise
    done = trial(slot.case, block=slot.block, repeat=slot.repeat)
    told = {
        "decode_ns": int(PASS_NS / GAINS[slot.case.gamma] * slow),
        "status": Status.VALID,
        "reason": None,
        **changes,
    }
    return msgspec.structs.replace(done, **told)  # type: ignore[arg-type]


def run(race: Race, left: Sequence[Block], measure: Callable[[Slot], Trial]) -> list[Slot]:
    """All that a race chose, as who measures would ask it."""
    rest, chosen, trials = list(left), list[Slot](), list[Measured]()
    while rest and (turn := race.next(rest, trials)):
        for block in turn:
            trials += as_measured((slot.case, measure(slot)) for slot in block.slots)
            chosen += block.slots
        rest = [block for block in rest if block.key not in {own.key for own in turn}]
    return chosen


def counts(chosen: Sequence[Slot], prompt: str = "code") -> Mapping[str, int]:
    names = [arm_of(slot.case).setting for slot in chosen if slot.case.prompt.key == prompt]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def of_text(race: Race, text: str) -> Decision:
    (found,) = [decision for question, decision in race.decisions.items() if question.text == text]
    return found


def noisy(size: float = 0.05) -> Callable[[Slot], Trial]:
    rng = np.random.default_rng(0)
    return lambda slot: measured(slot, float(rng.normal(0, size)))


def test_arms_that_cannot_win_drop_out_and_the_rest_goes_on_until_it_is_decided() -> None:
    race = Race(Goal())
    ran = counts(run(race, planned_blocks(40), noisy()))
    decision = of_text(race, "code")
    assert race.stopped == "decided"
    assert decision.done()
    assert decision.leader in ("pld, gamma 2", "pld, gamma 4")
    assert ran["pld, gamma 16"] < ran["pld, gamma 2"] <= ran["plain"] < 40


def test_controls_stay_for_as_long_as_the_race_goes_on_and_push_nobody_out() -> None:
    race, left = Race(Goal()), planned_blocks(40)
    own = {slot.case.gamma: slot.case for block in left for slot in block.slots}
    oracle = msgspec.structs.replace(own[2], drafter=DrafterSpec(name="oracle"))
    moved = {own[2].id: oracle}
    left = [
        Block(
            slots=tuple(
                msgspec.structs.replace(s, case=c, case_id=c.id)
                for s in block.slots
                for c in (moved.get(s.case_id, s.case),)
            )
        )
        for block in left
    ]
    ran = counts(run(race, left, noisy()))
    assert race.stopped == "decided"
    assert of_text(race, "code").leader == "pld, gamma 4"
    assert ran["oracle, gamma 2"] == ran["plain"] < 40


def test_every_prompt_is_a_race_of_its_own_unless_one_answer_is_asked_for() -> None:
    race = Race(Goal())
    run(race, planned_blocks(40, ("code", "chat")), noisy())
    assert {question.text for question in race.decisions} == {"code", "chat"}
    together = Race(Goal(), plan=SessionPlan(pool="all", stopping=Stopping.SEQUENTIAL))
    run(together, planned_blocks(40, ("a", "b", "c")), noisy(0.01))
    assert of_text(together, "").standings[0].ratio.n == 3


@pytest.mark.parametrize(
    ("budget_s", "load_s", "beside_s", "n_blocks"),
    [
        (20.0, 0.0, 0.0, 3),  # both prompts once, and one of them again: a fourth block would end at 24 s
        (20.0, 300.0, 0.0, 3),  # a budget is of measuring: loading and warming up are not within
        (29.5, 3.0, 0.0, 4),
        (41.0, 3.0, 1.0, 3),  # what lies beside the trials is: judging and rests
        (0.001, 3.0, 0.0, 2),  # the first one always runs
    ],
)
def test_no_block_begins_that_would_not_end_in_time(
    budget_s: float, load_s: float, beside_s: float, n_blocks: int
) -> None:
    now_s = 5.0

    def measure(slot: Slot) -> Trial:
        nonlocal now_s, load_s
        trial = measured(slot, conditions=Conditions(generation_ns=10**9))
        race.account([StageTime(stage="load", wall_ns=round(load_s * 1e9), processor_ns=0)])
        now_s, load_s = now_s + 1.0 + beside_s + load_s, 0.0
        return trial

    race = Race(Goal(budget_s=budget_s), now_s=lambda: now_s)
    ran = run(race, planned_blocks(40, ("code", "chat")), measure)
    assert race.stopped == "budget"
    assert len(ran) == n_blocks * len(GAINS)
    assert race.spent_s <= budget_s or n_blocks == 2


def test_an_arm_that_is_not_valid_counts_no_more_and_a_disturbed_trial_only_itself() -> None:
    def measure(slot: Slot) -> Trial:
        if slot.case.gamma == 2:
            return measured(slot, status=Status.INVALID, reason="output differs at token 3")
        if slot.case.gamma == 1 and slot.repeat == 0:
            return measured(slot, status=Status.DISTURBED, reason="the worker waited")
        return measured(slot, 0.01 * (slot.repeat % 3))

    race = Race(Goal())
    ran = counts(run(race, planned_blocks(20), measure))
    assert ran["pld, gamma 2"] == 1
    assert ran["pld, gamma 1"] > 1
    assert of_text(race, "code").of("pld, gamma 2") is None


def test_without_a_time_of_plain_decoding_nothing_goes_on() -> None:
    def measure(slot: Slot) -> Trial:
        return measured(slot, **({} if slot.case.gamma else {"status": Status.INVALID, "reason": "a call failed"}))

    assert len(run(Race(Goal()), planned_blocks(20), measure)) == len(GAINS)


def test_a_first_block_whose_plain_trial_was_disturbed_each_time_ends_nothing() -> None:
    def measure(slot: Slot) -> Trial:
        if slot.case.gamma == 0 and slot.repeat == 0:
            return measured(slot, status=Status.DISTURBED, reason="the worker waited")
        return measured(slot, 0.01 * (slot.repeat % 3))

    race = Race(Goal())
    assert counts(run(race, planned_blocks(20), measure))["plain"] > 3 and race.stopped == "decided"


def test_earlier_trials_count_as_blocks_of_their_own() -> None:
    earlier = [slot for block in planned_blocks(3) for slot in block.slots]
    before = as_measured((slot.case, noisy()(slot)) for slot in earlier)
    later = [
        Block(slots=tuple(msgspec.structs.replace(s, block=s.block + 1_000, repeat=s.repeat + 3) for s in block.slots))
        for block in planned_blocks(40)
    ]
    fresh, informed = Race(Goal()), Race(Goal(), earlier=before)
    assert len(run(informed, later, noisy())) < len(run(fresh, planned_blocks(40), noisy()))

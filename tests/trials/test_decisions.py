import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.stats import Interval, mean_over
from mlsd.trials.decisions import NO_DIFFERENCE, NOTHING_PROPOSED, Decision, Most, Standing, decide, effect_of
from mlsd.trials.intervals import Design, Logs, Stopping, against

Arms = dict[str, Logs]


def blocks(*values: float, prompt: str = "code") -> Logs:
    return {(prompt, place): value for place, value in enumerate(values)}


def noisy(gain: float, n: int, seed: int, prompt: str = "code") -> Logs:
    return blocks(*(gain + np.random.default_rng(seed).normal(0, 0.02, n)), prompt=prompt)


PLAIN = noisy(0.0, 6, 0)
ARMS: Arms = {"fast": noisy(0.5, 6, 1), "fair": noisy(0.2, 6, 2), "slow": noisy(-0.4, 6, 3)}


def sequential(n_arms: int = 3) -> Design:
    return Design(n_arms=n_arms, stopping=Stopping.SEQUENTIAL)


def fixed(n_arms: int = 3) -> Design:
    return Design(n_arms=n_arms, stopping=Stopping.FIXED)


def of(decision: Decision, name: str) -> Standing:
    return next(one for one in decision.standings if one.name == name)


def test_clear_arms_are_decided_after_a_few_blocks_and_the_rest_is_out() -> None:
    found = decide(PLAIN, ARMS, sequential())
    assert [of(found, name).effect for name in ARMS] == ["faster", "faster", "slower"]
    assert of(found, "fair").out == "slower than fast"
    assert of(found, "slow").out == "slower"
    assert (found.leader, found.racing, found.done()) == ("fast", ("fast",), True)
    assert not found.done(0.001)  # but not known to a tenth of a per cent
    assert found.done(0.2)


def test_the_anchor_is_never_dropped() -> None:
    assert decide(PLAIN, ARMS, sequential(), anchor="slow").racing == ("fast", "slow")


def test_a_control_neither_wins_nor_drops_out_nor_pushes_others_out_nor_holds_a_session_up() -> None:
    bounds: Arms = {"oracle": noisy(0.9, 6, 4), "random": noisy(-0.9, 6, 5), "random, gamma 1": noisy(0.0, 6, 6)}
    found = decide(PLAIN, ARMS | bounds, sequential(), controls=bounds)
    assert (found.leader, found.racing, found.done()) == ("fast", ("fast", *bounds), True)
    alone = decide(PLAIN, bounds, sequential(), controls=bounds)
    assert (alone.leader, alone.racing, alone.done()) == (None, tuple(bounds), False)


def test_one_block_decides_nothing_and_neither_do_two_of_one_arm() -> None:
    one = {name: {place: log for place, log in arm.items() if place[1] < 1} for name, arm in ARMS.items()}
    assert {standing.effect for standing in decide(PLAIN, one, fixed()).standings} == {"not decided yet"}
    assert not decide(PLAIN, one, sequential()).done()
    two = {place: log for place, log in ARMS["fast"].items() if place[1] < 2}
    assert decide(PLAIN, {"fast": two}, sequential(1)).standings[0].ratio.low is None


def test_equals_end_as_no_difference_once_they_are_known_that_well() -> None:
    found = decide(noisy(0.0, 60, 0), {"same": noisy(0.0, 60, 1)}, sequential(1)).standings[0]
    assert found.sentence == "no difference above 3 %"
    few = decide(noisy(0.0, 4, 0), {"same": noisy(0.0, 4, 1)}, fixed(1)).standings[0]
    assert few.sentence.startswith("not decided yet: ")
    assert few.sentence.endswith("blocks needed")
    assert decide(PLAIN, {}, fixed(0)).done()


@pytest.mark.parametrize("n_blocks", [2, 3, 10])
def test_one_arm_at_fixed_repeats_has_students_interval(n_blocks: int) -> None:
    plain, own = noisy(0.0, n_blocks, 0), noisy(0.1, n_blocks, 1)
    found = decide(plain, {"a": own}, fixed(1)).standings[0].ratio
    alone = mean_over([math.exp(own[place] - plain[place]) for place in own], ratio=True)
    assert (found.value, found.low, found.high) == pytest.approx((alone.value, alone.low, alone.high))


def test_an_interval_pays_for_what_was_planned_whatever_else_was_measured() -> None:
    alone = decide(PLAIN, {"fast": ARMS["fast"]}, sequential(1)).standings[0].ratio
    bounds: Arms = {"oracle": noisy(0.9, 1, 4)}
    assert decide(PLAIN, {"fast": ARMS["fast"], **bounds}, sequential(1)).standings[0].ratio == alone


def test_several_prompts_are_the_units_whatever_the_blocks() -> None:
    plain = {place: log for p in "abcd" for place, log in noisy(0.0, 3, ord(p), p).items()}
    gains = {"a": 0.1, "b": 0.2, "c": 0.4, "d": 0.9}
    own = {place: log + gains[place[0]] for place, log in plain.items()}
    ratio = decide(plain, {"a": own}, fixed(1)).standings[0].ratio
    assert ratio.n == 4
    assert ratio.value == pytest.approx(math.exp(0.4))
    two = {place: log for place, log in own.items() if place[0] in "ab"}
    assert against(plain, {"a": two}, sequential(1))["a"].low is None  # two prompts tell too little of a workload


def test_blocks_of_the_same_prompts_add_no_look_at_fixed_repeats_and_never_widen_an_interval() -> None:
    def width(n_blocks: int, design: Design) -> float:
        plain = {(p, b): 0.0 for p in "abcd" for b in range(n_blocks)}
        own = {(p, b): 0.1 * ord(p) + 0.001 * (-1) ** b for p, b in plain}
        ratio = decide(plain, {"a": own}, design).standings[0].ratio
        assert ratio.low is not None
        return math.log(ratio.value / ratio.low)

    assert width(2, fixed(1)) == pytest.approx(width(30, fixed(1)), rel=1e-3)
    assert width(30, sequential(1)) <= width(2, sequential(1)) < 1.4 * width(2, fixed(1))


def test_more_arms_and_more_looks_ask_for_clearer_effects() -> None:
    designs = (fixed(3), fixed(60), sequential(60))
    once, among, often = (decide(PLAIN, ARMS, design).standings[0].ratio for design in designs)
    assert once.low is not None and among.low is not None and often.low is not None
    assert often.low < among.low < once.low < once.value == among.value


def test_effects_are_read_off_the_ends_of_an_interval() -> None:
    inside = 1 + NO_DIFFERENCE / 2
    assert effect_of(None) == effect_of(Interval(value=2.0)) == "not decided yet"
    assert effect_of(Interval(value=1.1, low=1.01, high=1.2)) == "faster"
    assert effect_of(Interval(value=0.9, low=0.8, high=0.99)) == "slower"
    assert effect_of(Interval(value=1.0, low=1 / inside, high=inside)) == "no difference"
    assert effect_of(Interval(value=1.0, low=0.9, high=inside)) == "not decided yet"


LOGS = st.lists(st.floats(-1, 1), min_size=8, max_size=8)


@given(st.lists(LOGS, min_size=2, max_size=5), st.randoms())
def test_the_order_of_arms_does_not_matter(values: list[list[float]], random: object) -> None:
    arms = {str(place): blocks(*value) for place, value in enumerate(values)}
    names = list(arms)
    random.shuffle(names)  # type: ignore[attr-defined]
    first, other = (
        decide(PLAIN | blocks(*values[0]), arms, sequential()),
        decide(PLAIN | blocks(*values[0]), {n: arms[n] for n in names}, sequential()),
    )
    assert {one.name: one.effect for one in first.standings} == {one.name: one.effect for one in other.standings}
    assert first.leader == other.leader


@given(LOGS, LOGS, st.integers(1, 8))
def test_more_blocks_that_say_the_same_never_undo_a_decision(plain: list[float], own: list[float], more: int) -> None:
    before = decide(blocks(*plain), {"a": blocks(*own)}, sequential(1)).standings[0]
    mean = sum(o - p for o, p in zip(own, plain, strict=True)) / len(own)
    after = decide(blocks(*plain, *[0.0] * more), {"a": blocks(*own, *[mean] * more)}, sequential(1)).standings[0]
    if before.effect != "not decided yet":
        assert after.effect == before.effect


@given(LOGS, LOGS, st.floats(-3, 3))
def test_what_all_arms_of_a_block_share_decides_nothing(plain: list[float], own: list[float], shift: float) -> None:
    shifted = [[value + shift * place for place, value in enumerate(side)] for side in (plain, own)]
    first = decide(blocks(*plain), {"a": blocks(*own)}, sequential(1)).standings[0].ratio
    second = decide(blocks(*shifted[0]), {"a": blocks(*shifted[1])}, sequential(1)).standings[0].ratio
    assert first.value == pytest.approx(second.value)
    assert first.low == pytest.approx(second.low)


def test_no_speedup_is_above_what_the_counts_allow_and_what_lies_beyond_leads_nobody() -> None:
    arms = {"bad clock": noisy(0.9, 6, 1), "fair": noisy(0.3, 6, 2), "slight": noisy(0.09, 6, 3)}
    limits = {"bad clock": Most(1.5), "fair": Most(2.5), "slight": Most(1.07)}
    found = decide(noisy(0.0, 6, 0), arms, fixed(3), limits=limits)
    assert found.impossible == ("bad clock",) and found.leader == "fair" and found.of("bad clock") is None
    fair, slight = found.of("fair"), found.of("slight")
    assert fair is not None and fair.out is None and slight is not None
    assert slight.ratio.high is not None and slight.ratio.value > 1.07 and slight.doubt == ""  # as it was timed
    idle = decide(noisy(0.0, 6, 0), {"idle": noisy(0.2, 6, 4)}, fixed(1), limits={"idle": Most(1.0, proposed=False)})
    assert idle.standings[0].out == NOTHING_PROPOSED and idle.done() and idle.leader is None


def test_a_speedup_above_what_the_counts_allow_keeps_its_value_and_decides_nothing() -> None:
    own = blocks(0.62, 0.66, 0.10, 0.64, 0.63, 0.61)  # 1.72x on average, of at most 1.63
    (found,) = decide(blocks(*[0.0] * 6), {"a": own}, fixed(1), limits={"a": Most(1.63)}).standings
    assert found.ratio.value == pytest.approx(math.exp(sum(own.values()) / 6)) and found.ratio.value > 1.63
    assert found.ratio.high is not None and found.ratio.high > found.ratio.value
    assert found.effect == "not decided yet" and "above what its MGL of 1.63 allows" in found.finding


@pytest.mark.parametrize("design", [fixed(1), sequential(1)], ids=["fixed", "sequential"])
@pytest.mark.parametrize("gain", [0.5, -0.5, 0.0])
def test_nothing_is_decided_from_fewer_than_three_blocks_however_well_they_agree(design: Design, gain: float) -> None:
    for n in (1, 2):
        decision = decide(blocks(*[0.0] * n), {"a": blocks(*(gain + 1e-6 * i for i in range(n)))}, design)
        (found,) = decision.standings
        assert (found.effect, found.out) == ("not decided yet", None) and not decision.done()
        assert found.finding.endswith("not decided yet: nothing is decided from fewer than 3 blocks")
    (found,) = decide(blocks(0.0, 0.0, 0.0), {"a": blocks(gain, gain, gain)}, fixed(1)).standings
    assert found.effect != "not decided yet"


def test_an_arm_whose_times_are_in_doubt_is_neither_decided_nor_drops_another_out() -> None:
    found = decide(PLAIN, ARMS, sequential(), doubts={"fast": "its trials waited", "slow": "its trials waited"})
    assert [of(found, name).effect for name in ARMS] == ["not decided yet", "faster", "not decided yet"]
    assert [of(found, name).out for name in ARMS] == [None, None, None] and not found.done()
    assert of(found, "slow").sentence == "not decided yet: its trials waited"


def test_one_function_says_what_blocks_look_like_and_what_they_decide() -> None:
    once = Standing(name="a", ratio=Interval(value=1.44), effect="not decided yet", n_blocks=1)
    assert once.finding == "looks like a win: 1.44x after 1 block, not decided yet"
    wide = Standing(name="a", ratio=Interval(value=0.21, low=0.06, high=0.71, n=3), effect="slower", n_blocks=3)
    assert wide.finding == "is slower: 0.21x (95 % 0.06 to 0.71)"  # however wide
    near = Standing(name="a", ratio=Interval(value=0.961, low=0.927, high=0.9962, n=9), effect="slower", n_blocks=9)
    assert near.finding == "is slower: 0.961x (95 % 0.927 to 0.996)"  # and not "to 1.00"
    even = Standing(name="a", ratio=Interval(value=1.01, low=0.99, high=1.02, n=9), effect="no difference", n_blocks=9)
    assert even.finding == "makes no difference: 1.01x (95 % 0.99 to 1.02)"

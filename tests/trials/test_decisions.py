from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import decisions as simulated
from mlsd.stats import Interval
from mlsd.trials.decisions import (
    NO_DIFFERENCE,
    Decision,
    Logs,
    Standing,
    Timing,
    against,
    decide,
    effect_of,
    standings,
)
from mlsd.trials.fates import Fate

Arms = dict[str, Logs]


def blocks(*values: float, prompt: str = "code") -> Logs:
    return {(prompt, place): value for place, value in enumerate(values)}


def noisy(gain: float, n: int, seed: int, prompt: str = "code") -> Logs:
    return blocks(*(gain + np.random.default_rng(seed).normal(0, 0.02, n)), prompt=prompt)


PLAIN = noisy(0.0, 6, 0)
ARMS: Arms = {"fast": noisy(0.5, 6, 1), "fair": noisy(0.2, 6, 2), "slow": noisy(-0.4, 6, 3)}


def of(decision: Decision, name: str) -> Standing:
    return next(one for one in decision.standings if one.name == name)


def test_clear_arms_are_decided_after_a_few_blocks_and_the_rest_is_out() -> None:
    found = decide(PLAIN, ARMS)
    assert [of(found, name).effect for name in ARMS] == ["faster", "faster", "slower"]
    assert of(found, "fair").out == "slower than fast"
    assert of(found, "slow").out == "slower than plain decoding"
    assert (found.leader, found.racing, found.done()) == ("fast", ("fast",), True)
    assert found.best == of(found, "fast")
    assert not found.done(0.001)  # but not known to a tenth of a per cent
    assert found.done(0.2)


def test_the_anchor_is_never_dropped() -> None:
    assert decide(PLAIN, ARMS, anchor="slow").racing == ("fast", "slow")


def test_a_control_neither_wins_nor_drops_out_nor_pushes_others_out_nor_holds_a_session_up() -> None:
    bounds: Arms = {"oracle": noisy(0.9, 6, 4), "random": noisy(-0.9, 6, 5), "random, gamma 1": noisy(0.0, 6, 6)}
    found = decide(PLAIN, ARMS | bounds, controls=bounds)
    assert (found.leader, found.racing, found.done()) == ("fast", ("fast", *bounds), True)
    assert not any(name in found.words for name in bounds)
    alone = decide(PLAIN, bounds, controls=bounds)
    assert (alone.leader, alone.best, alone.racing, alone.done()) == (None, None, tuple(bounds), False)


def test_one_block_decides_nothing_and_neither_do_two_of_one_arm() -> None:
    one = {name: {place: log for place, log in arm.items() if place[1] < 1} for name, arm in ARMS.items()}
    assert {standing.effect for standing in decide(PLAIN, one).standings} == {"undecided"}
    assert not decide(PLAIN, one).done()
    two = {place: log for place, log in ARMS["fast"].items() if place[1] < 2}
    assert decide(PLAIN, {"fast": two}).standings[0].ratio.low is None


def test_equals_end_as_no_difference_once_they_are_known_that_well() -> None:
    found = decide(noisy(0.0, 60, 0), {"same": noisy(0.0, 60, 1)}).standings[0]
    assert found.words == "no difference above 3 %"
    few = decide(noisy(0.0, 4, 0), {"same": noisy(0.0, 4, 1)}).standings[0]
    assert few.words.startswith("undecided: ")
    assert few.words.endswith("blocks would be needed")
    assert decide(PLAIN, {}).done()


def test_a_sentence_names_a_few_undecided_settings_and_counts_more() -> None:
    one = {name: {place: log for place, log in ARMS["fast"].items() if place[1] < 1} for name in "abc"}
    assert decide(PLAIN, one).words.endswith("; 3 settings are undecided")
    assert "a is undecided" in decide(PLAIN, {"a": one["a"]}).words


def test_several_prompts_are_the_units_whatever_the_blocks() -> None:
    plain = {place: log for p in "abcd" for place, log in noisy(0.0, 3, ord(p), p).items()}
    gains = {"a": 0.1, "b": 0.2, "c": 0.4, "d": 0.9}
    own = {place: log + gains[place[0]] for place, log in plain.items()}
    ratio = decide(plain, {"a": own}).standings[0].ratio
    assert ratio.n == 4
    assert ratio.value == pytest.approx(math.exp(0.4))
    two = {place: log for place, log in own.items() if place[0] in "ab"}
    assert against(plain, {"a": two})["a"].low is None  # two prompts say nothing of a workload


def test_more_arms_ask_for_clearer_effects() -> None:
    alone, among = (decide(PLAIN, ARMS, n_choices=n).standings[0].ratio for n in (3, 60))
    assert alone.low is not None
    assert among.low is not None
    assert among.low < alone.low
    assert among.value == alone.value


def test_effects_are_read_off_the_ends_of_an_interval() -> None:
    inside = 1 + NO_DIFFERENCE / 2
    assert effect_of(None) == effect_of(Interval(value=2.0)) == "undecided"
    assert effect_of(Interval(value=1.1, low=1.01, high=1.2)) == "faster"
    assert effect_of(Interval(value=0.9, low=0.8, high=0.99)) == "slower"
    assert effect_of(Interval(value=1.0, low=1 / inside, high=inside)) == "no difference"
    assert effect_of(Interval(value=1.0, low=0.9, high=inside)) == "undecided"


LOGS = st.lists(st.floats(-1, 1), min_size=8, max_size=8)


@given(st.lists(LOGS, min_size=2, max_size=5), st.randoms())
def test_the_order_of_arms_does_not_matter(values: list[list[float]], random: object) -> None:
    arms = {str(place): blocks(*value) for place, value in enumerate(values)}
    names = list(arms)
    random.shuffle(names)  # type: ignore[attr-defined]
    first, other = (
        decide(PLAIN | blocks(*values[0]), arms),
        decide(PLAIN | blocks(*values[0]), {n: arms[n] for n in names}),
    )
    assert {one.name: one.effect for one in first.standings} == {one.name: one.effect for one in other.standings}
    assert first.leader == other.leader


@given(LOGS, LOGS, st.integers(1, 8))
def test_more_blocks_that_say_the_same_never_undo_a_decision(plain: list[float], own: list[float], more: int) -> None:
    before = decide(blocks(*plain), {"a": blocks(*own)}).standings[0]
    mean = sum(o - p for o, p in zip(own, plain, strict=True)) / len(own)
    after = decide(blocks(*plain, *[0.0] * more), {"a": blocks(*own, *[mean] * more)}).standings[0]
    if before.effect != "undecided":
        assert after.effect == before.effect


@given(LOGS, LOGS, st.floats(-3, 3))
def test_what_all_arms_of_a_block_share_decides_nothing(plain: list[float], own: list[float], shift: float) -> None:
    shifted = [[value + shift * place for place, value in enumerate(side)] for side in (plain, own)]
    first = decide(blocks(*plain), {"a": blocks(*own)}).standings[0].ratio
    second = decide(blocks(*shifted[0]), {"a": blocks(*shifted[1])}).standings[0].ratio
    assert first.value == pytest.approx(second.value)
    assert first.low == pytest.approx(second.low)


# The simulations of `benchmarks/decisions.py`, small and seeded.


@pytest.mark.parametrize("kind", sorted(simulated.NOISE))
def test_sessions_looked_at_after_every_block_decide_falsely_in_five_of_a_hundred_at_most(kind: str) -> None:
    found = simulated.null_sessions(kind, 4, 60)
    assert found.false <= 0.05 + 0.03
    assert found.covered >= 0.93


@pytest.mark.parametrize("processes", ["of a block", "of the session"])
@pytest.mark.parametrize("size", [0.002, 0.03])
def test_servers_whose_processes_differ_are_falsely_decided_in_five_of_a_hundred_sessions_at_most(
    processes: simulated.Processes, size: float
) -> None:
    found = simulated.null_sessions("normal noise", 2, 60, size, processes=processes)
    assert found.false <= 0.05 + 0.03
    assert found.covered >= 0.93


def test_prompts_that_tell_each_other_of_their_noise_decide_no_more_falsely() -> None:
    assert simulated.null_prompts("normal noise", 1, 60, unlike=0.5).false <= 0.05 + 0.03


@pytest.mark.heavy
def test_whole_searches_and_comparisons_until_a_margin_find_nothing_where_nothing_is() -> None:
    found = simulated.null_waves("normal noise", 12)
    assert found.false <= 1 / 12 and found.covered >= 0.93
    assert simulated.null_comparisons("normal noise", 12) == 0.0


def test_noise_is_told_within_a_session_alone_and_not_by_means_over_prompts() -> None:
    def timings(group: str, session: int, prompts: str = "p") -> list[Timing[str]]:
        arms = {None: noisy(0.0, 3, ord(group)), "a": noisy(0.3, 3, ord(group) + 1), "b": noisy(0.2, 3, 9)}
        return [
            Timing(group, name, (prompt, block), math.exp(log), Fate.VALID, session=session)
            for name, logs in arms.items()
            for (_, block), log in logs.items()
            for prompt in prompts
        ]

    alone = standings(timings("x", 1), n_choices=4)["x"].standings[0].ratio
    together = standings([*timings("x", 1), *timings("y", 1)])["x"].standings[0].ratio
    assert alone.low is not None and together.low is not None and alone.low < together.low
    for other in (timings("y", 2), timings("y", 1, "pqr")):
        assert standings([*timings("x", 1), *other])["x"].standings[0].ratio == alone


def test_the_best_is_the_fastest_that_is_decided_though_another_may_be_faster_still() -> None:
    arms = {**ARMS, "open": {("code", 0): 2.0}}
    found = decide(PLAIN, arms)
    assert found.leader == "open" and found.best == of(found, "fast")


def test_a_search_of_0_2_0_named_a_winner_of_equals_in_a_third() -> None:
    rng = np.random.default_rng(0)
    named = [simulated.old_tune(rng, np.zeros(20), 0.1)[0] is not None for _ in range(100)]
    assert np.mean(named) > 0.2


def test_intervals_cover_where_a_few_prompts_gain_most() -> None:
    assert simulated.skewed_prompts(4, 300) >= 0.93


def test_a_race_takes_less_trials_than_fixed_blocks_that_answer_as_well() -> None:
    effort = simulated.bench_effort(simulated.RECORDED, 3)
    assert effort.trials < 0.7 * effort.fixed_trials

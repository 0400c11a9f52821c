"""The answer names a setting only where its interval lies above 1, and says "off" otherwise."""

from __future__ import annotations

import msgspec
import pytest

from mlsd.analysis.results.best_setting import best_settings, by_target, first_line
from mlsd.analysis.results.speedups import Speedup
from mlsd.stats import Interval
from mlsd.trials.decisions import Standing, effect_of

BASE = Speedup(
    target="moe", drafter="draft-model", draft="small", gamma=4, options="", n_predict=64, suite=None, prompt=None,
    workload="code", comparable="x", ratio=Interval(value=1.2, low=1.1, high=1.3, n=6), n_blocks=6, n_trials=6,
    n_valid=6, decode_tok_s=60.0, baseline_tok_s=50.0, acceptance_rate=0.5, mgl=3.0, invalid_reason=None,
)  # fmt: skip


def arm(low: float | None, value: float, high: float | None, **changes: object) -> Speedup:
    ratio = Interval(value=value, low=low, high=high, n=6)
    more = 5 if effect_of(ratio) == "undecided" else None
    standing = Standing(name="", ratio=ratio, effect=effect_of(ratio), more_blocks=more)
    return msgspec.structs.replace(BASE, ratio=ratio, standing=standing, **changes)


def test_the_fastest_decided_setting_is_named_with_its_interval() -> None:
    answers = best_settings([arm(1.1, 1.2, 1.3), arm(1.2, 1.5, 1.8, gamma=8), arm(0.9, 1.9, 4.0, gamma=16)])
    assert [a.use for a in answers] == ["small, gamma 8"]
    line = first_line(answers)
    assert "use small, gamma 8 for code: 1.50x (95 % 1.20 to 1.80)" in line
    assert "Intervals hold for all 3 settings together" in line
    assert "off" not in line


def test_slower_everywhere_is_off_with_the_best_that_was_tried() -> None:
    line = first_line(best_settings([arm(0.5, 0.6, 0.7), arm(0.3, 0.4, 0.5, gamma=8)]))
    assert "leave it off for everything here" in line
    assert "0.60x (95 % 0.50 to 0.70)" in line
    assert "undecided" not in line


def test_an_undecided_setting_is_off_and_called_undecided() -> None:
    answers = best_settings([arm(0.9, 1.05, 1.2)])
    assert (answers[0].use, answers[0].effect) == ("off", "undecided")
    assert "undecided" in first_line(answers)
    assert (
        "undecided: the best setting tried, small, gamma 4, gives 1.05x (95 % 0.90 to 1.20): 5 more blocks"
        in (by_target(answers)[0])
    )


def test_the_best_that_was_tried_is_the_fastest_and_not_the_one_that_is_known_least() -> None:
    known, hardly = arm(0.63, 0.65, 0.67), arm(0.04, 0.47, 1.65, gamma=16)
    (answer,) = best_settings([known, hardly])
    assert answer.arm == known
    assert (answer.use, answer.effect, answer.n_undecided) == ("off", "undecided", 1)
    assert "best tried: small, gamma 4 on moe, code: 0.65x" in first_line([answer])


def test_what_has_no_valid_pair_is_not_counted_as_undecided() -> None:
    failed = msgspec.structs.replace(BASE, ratio=None, n_valid=0, workload="qa")
    slower, open_ = arm(0.5, 0.6, 0.7, workload="prose"), arm(0.8, 0.9, 1.05)
    line = first_line(best_settings([slower, open_, failed]))
    assert "(1 of 3 are undecided, 1 have no valid pair of trials)" in line


def test_an_interval_that_says_little_is_not_printed() -> None:
    assert "0.47x (too few blocks for an interval: 6)" in first_line(best_settings([arm(8.6e-8, 0.47, 6.19)]))


def test_workloads_get_their_own_answer() -> None:
    answers = best_settings([arm(1.1, 1.2, 1.3), arm(0.5, 0.6, 0.7, workload="prose")])
    assert {(a.workload, a.use) for a in answers} == {("code", "small, gamma 4"), ("prose", "off")}
    line = first_line(answers)
    assert "for code" in line and "leave it off for the other 1 of 2" in line


def test_one_block_is_no_decision() -> None:
    answers = best_settings([arm(None, 2.0, None)])
    assert answers[0].use == "off"
    assert "no interval" in first_line(answers)


def test_arms_without_a_valid_pair_are_off_and_say_so() -> None:
    answers = best_settings([msgspec.structs.replace(BASE, ratio=None, n_valid=0)])
    assert answers[0].use == "off"
    assert "no pair of trials is valid" in first_line(answers)


@pytest.mark.parametrize("answers", [[], best_settings([])])
def test_nothing_measured_gives_no_setting(answers: list) -> None:
    assert "no setting to choose" in first_line(answers)

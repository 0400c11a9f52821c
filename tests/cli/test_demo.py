"""How ``mlsd demo`` ends; tests/test_wheel.py runs all of it."""

import msgspec

from mlsd.cli.commands.demo import honest, invalid, loss, win
from mlsd.records import NO_DRAFTER, Status
from tests.trials.made import result


def test_a_win_is_said_only_where_it_is_decided_and_always_with_its_bound() -> None:
    slow, oracle = result(1.0, 1.1, 1.2, drafter="oracle"), result(1.4, 1.5, 1.6, drafter="oracle", gamma=8)
    said = win([result(0.9, 1.0, 1.1, drafter="pld"), result(1.2, 1.3, 1.4, drafter="pld", gamma=8), slow, oracle])
    assert "THE HONEST WIN" in said and "is faster: 1.30x (95 % 1.20 to 1.40)" in said and "1.50x (95 % 1.40" in said
    said = win([result(0.7, 0.8, 0.9, drafter="pld"), oracle])
    assert said.startswith("NO WIN on this machine") and "is slower: 0.80x" in said and "1.50x" in said


def test_what_one_block_shows_is_called_neither_a_win_nor_none_and_a_beaten_control_is_said() -> None:
    once = result(None, 1.44, None, drafter="pld", n=1)
    said = win([once, result(None, 1.38, None, drafter="oracle", n=1)])
    assert said.startswith("NOT DECIDED YET: copying, prompt lookup looks like a win: 1.44x after 1 block, not decided")
    assert "measured at 1.38x (no interval from 1 block): less, which can only be noise" in said
    assert win([result(0.9, 1.3, 1.7, drafter="pld"), result(1.4, 1.5, 1.6, drafter="oracle")]).startswith(
        "NOT DECIDED"
    )
    lost = loss([result(None, 0.50, None, n=1)])
    assert lost.startswith("NOT DECIDED YET") and "looks like a loss: 0.50x after 1 block, not decided yet" in lost


def test_a_bound_is_compared_by_its_interval_and_one_that_is_passed_is_called_failed() -> None:
    oracle = result(1.02, 1.42, 1.99, drafter="oracle")
    said = win([result(1.15, 1.71, 2.52, drafter="pld"), oracle])
    assert "the two cannot be told apart" in said and "control failed" not in said
    assert "the control failed" in win([result(2.1, 2.2, 2.3, drafter="pld"), oracle])
    lost = result(None, None, None, drafter="oracle", statuses={"failed": 1})
    assert "the control failed" in win([result(2.1, 2.2, 2.3, drafter="pld"), lost])
    assert win([result(None, None, None, drafter="pld"), oracle]).startswith("NO USABLE MEASUREMENT")


def test_a_loss_is_said_only_where_there_is_one() -> None:
    assert "THE HONEST LOSS" in loss([result(0.5, 0.6, 0.7)])
    assert "not decided" in loss([result(0.7, 0.9, 1.1)])
    assert "NO LOSS" in loss([result(1.05, 1.1, 1.3)])
    wrong = result(None, None, None)
    trial = msgspec.structs.replace(wrong.trials[0].trial, status=Status.INVALID, reason="diverged")
    wrong = msgspec.structs.replace(wrong, statuses={"invalid": 1}, trials=(wrong.trials[0]._replace(trial=trial),))
    assert loss([wrong]) == "NO USABLE MEASUREMENT: diverged."


def test_the_invalid_one_names_what_was_printed_and_why_it_counts_for_nothing_beside_the_truth() -> None:
    plain = result(None, None, None, drafter=NO_DRAFTER, name=None)
    ignored = [result(None, claim, None, gamma=gamma) for claim, gamma in ((1.5, 4), (2.2, 16))]
    said = invalid([plain, *ignored])
    assert said.startswith("THE INVALID ONE") and "1.50x at gamma 4, 2.20x at gamma 16" in said
    assert honest([plain, result(0.1, 0.2, 0.3)]) == "IN TRUTH the same pair is slower: 0.20x (95 % 0.10 to 0.30)."

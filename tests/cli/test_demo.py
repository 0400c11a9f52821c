"""How ``mlsd demo`` ends; tests/test_wheel.py runs all of it."""

from functools import partial

import msgspec

from mlsd.cli.commands.demo import ending, invalid
from mlsd.records import NO_DRAFTER, Status
from tests.trials.made import result

win, loss = partial(ending, expected="faster", name="WIN"), partial(ending, expected="slower", name="LOSS")


def test_an_ending_is_said_only_where_it_is_decided_the_fastest_arm_beside_the_fastest_control() -> None:
    slow, oracle = result(1.0, 1.1, 1.2, drafter="oracle"), result(1.4, 1.5, 1.6, drafter="oracle", gamma=8)
    said = win([result(0.9, 1.0, 1.1, drafter="pld"), result(1.2, 1.3, 1.4, drafter="pld", gamma=8), slow, oracle])
    assert said.startswith("THE HONEST WIN: pld") and "is faster: 1.30x (95 % 1.20 to 1.40), and the text" in said
    assert said.endswith("always right and free were measured at 1.50x (95 % 1.40 to 1.60).")
    assert win([result(0.7, 0.8, 0.9, drafter="pld"), oracle]).startswith("NO WIN HERE: pld")
    assert loss([result(0.5, 0.6, 0.7)]).startswith("THE HONEST LOSS")
    assert loss([result(1.05, 1.1, 1.3)]).startswith("NO LOSS HERE")


def test_what_one_block_shows_is_called_neither_a_win_nor_none() -> None:
    said = win([result(None, 1.44, None, drafter="pld", n=1), result(None, 1.38, None, drafter="oracle", n=1)])
    assert said.startswith("NOT DECIDED YET: pld") and "looks like a win: 1.44x after 1 block, not decided" in said
    assert "measured at 1.38x (no interval from 1 block)" in said
    assert loss([result(None, 0.50, None, n=1)]).startswith("NOT DECIDED YET")


def test_an_arm_that_cannot_be_used_says_why() -> None:
    wrong = result(None, None, None)
    trial = msgspec.structs.replace(wrong.trials[0].trial, status=Status.INVALID, reason="diverged")
    wrong = msgspec.structs.replace(wrong, statuses={"invalid": 1}, trials=(wrong.trials[0]._replace(trial=trial),))
    assert loss([wrong]) == "NO USABLE MEASUREMENT: diverged."


def test_the_invalid_one_names_what_was_printed_and_why_it_counts_for_nothing_beside_the_truth() -> None:
    plain = result(None, None, None, drafter=NO_DRAFTER, name=None)
    ignored = [result(None, claim, None, gamma=gamma) for claim, gamma in ((1.5, 4), (2.2, 16))]
    said = invalid([plain, *ignored])
    assert said.startswith("THE INVALID ONE") and "1.50x at gamma 4, 2.20x at gamma 16" in said
    said = ending([plain, result(0.1, 0.2, 0.3)])
    assert said.startswith("IN TRUTH: ") and "is slower: 0.20x (95 % 0.10 to 0.30)" in said

"""How ``mlsd demo`` ends; tests/test_wheel.py runs all of it."""

from __future__ import annotations

import msgspec

from mlsd.cli.start.demo import loss, win
from tests.trials.made import result


def test_a_win_is_said_only_where_it_is_decided_and_always_with_its_bound() -> None:
    oracle = result(1.4, 1.5, 1.6, drafter="oracle")
    assert "THE HONEST WIN" in win([result(1.2, 1.3, 1.4, drafter="pld"), oracle])
    for undecided in (result(0.9, 1.3, 1.7, drafter="pld"), result(0.7, 0.8, 0.9, drafter="pld")):
        said = win([undecided, oracle])
        assert said.startswith("NO WIN on this machine") and "1.50 times" in said


def test_a_loss_is_said_only_where_there_is_one() -> None:
    assert "THE HONEST LOSS" in loss([result(0.5, 0.6, 0.7)])
    assert "not decided" in loss([result(0.7, 0.9, 1.1)])
    assert "NO LOSS" in loss([result(0.9, 1.1, 1.3)])
    wrong = result(0.5, 0.6, 0.7)
    trial = msgspec.structs.replace(wrong.trials[0].trial, valid=False, invalid_reason="diverged")
    wrong = msgspec.structs.replace(wrong, fates={"diverged": 1}, trials=(wrong.trials[0]._replace(trial=trial),))
    assert loss([wrong]) == "NO LOSS that counts: diverged."

"""A trial that cannot be is named with what is broken; one that the loop made breaks nothing."""

from typing import Any

import msgspec
import pytest

from mlsd.records import Case, Conditions, Losslessness, Status, Trial
from mlsd.trials.identities import admitted, broken
from tests.analysis import studies

CASE = studies.case(studies.MOE, "code", 4)
TRIAL = studies.trial(CASE, 0, 0, 0)


def rules(case: Case, trial: Trial) -> set[str]:
    return {found.rule for found in broken(case, trial)}


def changed(number: int, **figures: int) -> dict[str, Any]:
    """The rounds with one of them altered."""
    rounds = list(TRIAL.rounds)
    rounds[number] = msgspec.structs.replace(rounds[number], **figures)
    return {"rounds": tuple(rounds)}


def test_a_trial_of_the_loop_and_a_failed_one_break_nothing() -> None:
    assert rules(CASE, TRIAL) == set()
    assert rules(CASE, studies.failed(CASE, 0)) == set()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"gamma": 3}, "arm"),
        ({"arm": "ar"}, "arm"),
        ({"case_id": "0" * 16}, "case"),
        ({"decode_ns": -5}, "range"),
        ({"decode_ns": 1 << 63}, "range"),
        ({"prefill_ns": -1}, "range"),
        ({"block": -1}, "range"),
        ({"stats": {"lookup_ns": -1.0}}, "range"),
        ({"conditions": Conditions(generation_ns=-1)}, "range"),
        ({"losslessness": Losslessness(verdict="lossless", tolerance=-1.0)}, "range"),
        ({"decode_ns": (TRIAL.decode_ns or 0) // 10}, "parts"),
        ({"timed": False}, "parts"),
        ({"tokens": (*TRIAL.tokens[:-1], -1)}, "range"),
        ({"tokens": TRIAL.tokens[:-1]}, "committed"),
        ({"tokens": ()}, "tokens"),
        (changed(0, accepted=9), "round"),
        (changed(0, committed=-1), "range"),
        (changed(0, rows=1), "round"),
        (changed(0, verify_ns=1 << 70), "range"),
        ({"conditions": Conditions(generation_ns=1)}, "generation"),
        ({"status": Status.INVALID}, "valid"),
        ({"failed_native_calls": 1}, "valid"),
        ({"losslessness": Losslessness(verdict="diverged")}, "valid"),
        ({"losslessness": Losslessness(verdict="lossless", first_difference=3)}, "verdict"),
        ({"losslessness": Losslessness(verdict="near_tie", n_different=4, n_compared=3)}, "verdict"),
        ({"status": Status.FAILED, "reason": "killed"}, "failed"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], rule: str) -> None:
    assert rule in rules(CASE, msgspec.structs.replace(TRIAL, **changes))


@pytest.mark.parametrize(
    "changes",
    [{"decode_ns": -5}, {"decode_ns": 1 << 70}, {"decode_ns": 7}, {"tokens": (-1,) * 33}, changed(0, accepted=9)],
)
def test_what_cannot_be_is_stored_as_a_failed_trial_in_its_place(changes: dict[str, Any]) -> None:
    made = admitted(CASE, msgspec.structs.replace(TRIAL, **changes))
    assert (made.status, made.tokens, made.decode_ns) == ("failed", (), None)
    assert (made.block, made.repeat, made.position) == (TRIAL.block, TRIAL.repeat, TRIAL.position)
    assert "cannot be" in (made.reason or "")
    assert rules(CASE, made) == set()
    assert admitted(CASE, TRIAL) is TRIAL


def test_a_server_is_asked_only_what_it_can_know() -> None:
    case = msgspec.structs.replace(CASE, server="Ollama 0.9")
    said = {"case_id": case.id, "tokens": (), "rounds": (), "losslessness": None, "decode_ns": 7}
    trial = msgspec.structs.replace(TRIAL, stats={"n_tokens": 8.0}, **said)
    assert rules(case, trial) == set()
    assert rules(case, msgspec.structs.replace(trial, decode_ns=-1)) == {"range"}
    assert rules(case, msgspec.structs.replace(trial, stats={})) == {"tokens"}

"""Sentences that say why methods pay or do not."""

from __future__ import annotations

import msgspec

from mlsd.analysis.results.methods_table import TimingRow, sentences
from mlsd.analysis.results.round_split import RoundKind

ROW = TimingRow(
    target="small",
    method="pld (ngram 3)",
    gamma=10,
    case_id="c",
    rounds=100,
    limit=None,
    ms_per_round={"draft": 0.5, "verify": 39.0, "rollback": 0.3, "sample": 0.1, "other": 0.1},
    mgl=1.36,
    break_even_mgl=4.0,
    effect="slower",
    inside_ms={},
    match_rate=0.25,
    match_ms=0.1,
    no_match_ms=0.1,
    found=RoundKind(rounds=25, ms={"round": 130.0}),
    not_found=RoundKind(rounds=75, ms={"round": 10.0}),
    fell_back=None,
)
EFFICIENCY = {1: 1.0, 2: 0.5, 11: 0.1}


def test_a_method_that_loses_is_told_what_it_commits_what_it_costs_and_where() -> None:
    assert sentences([ROW], {"small": EFFICIENCY}, "e.sqlite") == (
        "small: T(2)/T(1) = 2.00, T(11)/T(1) = 10.00; 1 would mean that verification is free.",
        "pld (ngram 3), gamma 10, does not pay on small: a round commits 1.36 tokens and takes 4.00 plain rounds, 98 % "
        "of it in verify; the 25 % of rounds with a proposal take 13.0 plain rounds each.",
    )


def test_a_method_that_wins_is_said_to_pay() -> None:
    winner = msgspec.structs.replace(ROW, mgl=4.5, effect="faster", found=None, not_found=None)
    (_, text) = sentences([winner], {"small": EFFICIENCY}, "e.sqlite")
    assert text == (
        "pld (ngram 3), gamma 10, pays on small: a round commits 4.50 tokens and takes 4.00 plain rounds, 98 % of it "
        "in verify."
    )


def test_without_a_calibration_the_command_for_one_is_named_and_without_plain_decoding_nothing_is_claimed() -> None:
    (only,) = sentences([msgspec.structs.replace(ROW, break_even_mgl=None)], {}, "e.sqlite")
    assert only == "small: T(2)/T(1) was not timed (mlsd calibrate small --db e.sqlite)."

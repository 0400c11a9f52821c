"""The answer names a setting only where its interval lies above 1; off and not decided yet are two answers."""

from __future__ import annotations

from msgspec.structs import replace

from mlsd.cli.answers import _next_step
from mlsd.trials.answers import answers, by_target, first_line
from mlsd.trials.results import TrialPair
from tests.trials.made import result


def test_the_fastest_decided_setting_is_named_with_its_interval() -> None:
    found = answers([result(1.1, 1.2, 1.3), result(1.2, 1.5, 1.8, gamma=8), result(0.9, 1.9, 4.0, gamma=16)])
    assert [(a.use, a.setting) for a in found] == [("on", "small, gamma 8")]
    assert first_line(found) == "Faster: small, gamma 8 gives 1.50x on code."
    assert "use small, gamma 8 for code: 1.50x (95 % 1.20 to 1.80)" in by_target(found)[0]


def test_slower_everywhere_is_off_with_the_best_that_was_tried() -> None:
    found = answers([result(0.5, 0.6, 0.7), result(0.3, 0.4, 0.5, gamma=8)])
    assert [a.use for a in found] == ["off"]
    assert first_line(found) == "Leave speculation off; best tried: small, gamma 4, 0.60x on code."


def test_an_undecided_setting_is_neither_on_nor_off_and_says_what_would_decide_it() -> None:
    (found,) = answers([result(0.9, 1.05, 1.2)])
    assert (found.use, found.effect, found.setting) == ("not decided yet", "undecided", "not decided yet")
    assert found.words.endswith("looks like 1.05x (95 % 0.90 to 1.20); about 5 more blocks would decide it")
    assert first_line([found]) == "Not decided yet; best tried: small, gamma 4, 1.05x on code."
    assert "small, gamma 4 looks like 1.05x" in by_target([found])[0]


def test_a_control_is_no_answer_however_fast_it_is() -> None:
    (found,) = answers([result(2.9, 3.0, 3.1, drafter="oracle"), result(1.1, 1.2, 1.3)])
    assert found.best is not None and found.best.case.drafter.name == "draft-model" and len(found.arms) == 1


def test_what_has_no_valid_pair_is_said_and_not_called_undecided() -> None:
    failed = result(None, None, None, text="qa", fates={"failed": 6})
    slower, open_ = result(0.5, 0.6, 0.7, text="prose"), result(0.8, 0.9, 1.05)
    assert first_line(answers([slower, open_, failed])).startswith("Not decided yet; best tried: small, gamma 4, 0.90x")
    assert "no pair of trials is valid" in first_line(answers([failed]))


def test_texts_and_lengths_get_their_own_answer() -> None:
    found = answers([result(1.1, 1.2, 1.3), result(0.5, 0.6, 0.7, text="prose"), result(0.5, 0.6, 0.7, n_predict=9)])
    assert {(a.text, a.n_predict, a.use) for a in found} == {
        ("code", 64, "on"), ("prose", 64, "off"), ("code", 9, "off"),
    }  # fmt: skip
    assert first_line(found) == "Faster in 1 of 3: small, gamma 4 gives 1.20x on code."
    assert "prose (64 tokens), code (9 tokens)" in by_target(found)[0]


def test_one_block_and_an_interval_that_says_little_decide_nothing() -> None:
    assert "2.00x (no interval from 1 block)" in by_target(answers([result(None, 2.0, None, n=1)]))[0]
    assert "0.47x (too few blocks for an interval: 6)" in by_target(answers([result(8.6e-8, 0.47, 6.19)]))[0]
    assert "no setting to choose" in first_line(answers([]))


def test_the_first_line_has_at_most_fifteen_words_whatever_a_setting_is_called() -> None:
    long = "a text with a name of many more words than anybody reads"
    for found in (result(1.1, 1.2, 1.3, text=long), result(0.5, 0.6, 0.7, text=long), result(0.9, 1.0, 1.1, text=long)):
        line = first_line(answers([found]))
        assert len(line.split()) <= 15 and f"{found.ratio.value if found.ratio else 0:.2f}x" in line


def test_the_command_that_decides_has_room_for_blocks_before_their_scatter_is_known() -> None:
    known = result(0.9, 1.05, 1.2)
    (plain, own) = (
        [one._replace(trial=replace(one.trial, decode_ns=s * 10**9)) for one in known.trials] for s in (8, 4)
    )
    (open_,) = answers([replace(known, pairs=(TrialPair(plain[0], own[0]),))])
    assert (open_.block_s, open_.seconds) == (12.0, 5 * 12.0)
    (alone,) = answers([replace(open_.arms[0], standing=replace(known.standing, more_blocks=None))])
    assert alone.seconds is None and "--budget-s 100" in str(_next_step(alone, {}))

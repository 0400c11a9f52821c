"""The answer names a setting only where its interval lies above 1; off and not decided yet are two answers."""

from typing import Any

import pytest
from msgspec.structs import replace

from mlsd.cli.answers import answer_object, next_step
from mlsd.methods import tried_unasked
from mlsd.planning.question import Invocation
from mlsd.records import Conditions, Status
from mlsd.servers.flags import flags_of
from mlsd.stats import Interval
from mlsd.trials.on_or_off import answers, by_target, first_line
from mlsd.trials.results import ArmResult, TrialPair
from mlsd.trials.stages import Stage, StageTime
from tests.trials.made import result

TOOK: dict[Stage, int] = {"load": 20, "reference": 10, "prefill": 15, "timed rounds": 20, "judging": 5}


def test_the_fastest_decided_setting_is_named_with_its_interval() -> None:
    found = answers([result(1.1, 1.2, 1.3), result(1.2, 1.5, 1.8, gamma=8), result(0.9, 1.9, 4.0, gamma=16)])
    assert [(a.use, a.setting) for a in found] == [("on", "small, gamma 8")]
    assert first_line(found) == "Faster: small, gamma 8 gives 1.50x on code."
    assert "code: use small, gamma 8: 1.50x (95 % 1.20 to 1.80)" in by_target(found)[0]


def test_slower_everywhere_is_off_with_the_best_that_was_tried() -> None:
    found = answers([result(0.5, 0.6, 0.7), result(0.3, 0.4, 0.5, gamma=8)])
    assert [a.use for a in found] == ["off"]
    assert first_line(found) == "Leave speculation off; best tried: small, gamma 4, 0.60x on code."


def test_an_undecided_setting_is_neither_on_nor_off_and_says_what_would_decide_it() -> None:
    (found,) = answers([result(0.9, 1.05, 1.2)])
    assert (found.use, found.setting) == ("not decided yet", "not decided yet")
    looks = "looks like a win: 1.05x (95 % 0.90 to 1.20) after 6 blocks"
    assert found.sentence.endswith(f"{looks}; about 5 more blocks would decide it")
    assert first_line([found]) == "Not decided yet; best tried: small, gamma 4, 1.05x on code."
    assert "small, gamma 4 looks like a win: 1.05x" in by_target([found])[0]


def plain(reason: str) -> ArmResult:
    """Plain decoding that failed."""
    return replace(unusable(reason, Status.FAILED), name=None)


def unusable(reason: str, status: Status = Status.INVALID, **more: Any) -> ArmResult:
    """An arm of which nothing can be decided, and why."""
    made = result(None, None, None, n=0, **more)
    invalid = replace(made.trials[0].trial, status=status, reason=reason)
    return replace(made, trials=(made.trials[0]._replace(trial=invalid),))


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ([unusable("interrupted")], "small, gamma 4: interrupted"),
        ([unusable("the vocabularies differ.", Status.FAILED)], "small, gamma 4: the vocabularies differ"),
        ([unusable("a"), unusable("a", gamma=8), unusable("b", gamma=2)],
         "small, gamma 4, small, gamma 8: a; small, gamma 2: b"),
        ([plain("out of memory"), unusable("")], "there is no valid trial of plain decoding: out of memory"),
    ],
    ids=["stopped", "failed", "several", "plain"],
)  # fmt: skip
def test_where_nothing_could_be_judged_the_answer_is_neither_off_nor_open_and_says_why(
    arms: list[ArmResult], words: str
) -> None:
    (found,) = answers(arms)
    assert (found.use, found.reason) == ("no usable measurement", words)
    assert found.sentence == f"no usable measurement: {words}" and words in by_target([found])[0]
    step = next_step(found, Invocation())
    assert flags_of(found) == () and step is not None and step.command.startswith("mlsd bench moe")
    looked_up = [result(None, None, None, n=0, drafter=name) for name in tried_unasked()]
    (again,) = answers([replace(unusable("the output differs"), case=arm.case) for arm in looked_up])
    assert next_step(again, Invocation()) is None, "what was invalid would be so again"


def test_an_arm_that_was_never_judged_is_open_beside_one_that_is_slower() -> None:
    (found,) = answers([result(0.5, 0.6, 0.7), unusable("interrupted", Status.DISTURBED, gamma=8)])
    assert found.use == "not decided yet" and flags_of(found) == ()
    assert found.sentence == (
        "not decided yet: small, gamma 4 is slower: 0.60x (95 % 0.50 to 0.70), but small, gamma 8: interrupted"
    )
    step = next_step(found, Invocation())
    assert step is not None and "--gamma 8 " in step.command


def test_our_own_trials_and_those_of_a_server_are_two_answers_and_two_servers_are_none() -> None:
    slow, fast = result(0.5, 0.6, 0.7), result(1.4, 1.5, 1.6)
    server = replace(slow, question=replace(slow.question, source="server"))
    own, theirs = answers([fast, server])
    assert (own.use, own.subject, theirs.use, theirs.subject) == ("on", "moe", "off", "moe (server)")
    assert answers([replace(slow, question=replace(slow.question, rivals=True))]) == []


def test_a_control_is_no_answer_however_fast_it_is() -> None:
    (found,) = answers([result(2.9, 3.0, 3.1, drafter="oracle"), result(1.1, 1.2, 1.3)])
    assert found.best is not None and found.best.case.drafter.name == "draft-model" and len(found.arms) == 1


def test_what_has_no_valid_pair_is_said_and_not_called_undecided() -> None:
    failed = result(None, None, None, text="qa", statuses={"failed": 6})
    slower, open_ = result(0.5, 0.6, 0.7, text="prose"), result(0.8, 0.9, 1.05)
    line = first_line(answers([slower, open_, failed]))
    assert line.startswith("Not decided yet in 1 of 3; best tried: small, gamma 4, 0.90x")
    assert first_line(answers([slower, failed])).startswith("Leave speculation off in 1 of 2; best tried:")
    assert first_line(answers([failed])).startswith("No usable measurement: no pair of trials is valid")


def test_texts_and_lengths_get_their_own_answer() -> None:
    found = answers([result(1.1, 1.2, 1.3), result(0.5, 0.6, 0.7, text="prose"), result(0.5, 0.6, 0.7, n_predict=9)])
    assert {(a.text, a.n_predict, a.use) for a in found} == {
        ("code", 64, "on"), ("prose", 64, "off"), ("code", 9, "off"),
    }  # fmt: skip
    assert first_line(found) == "Faster in 1 of 3: small, gamma 4 gives 1.20x on code."
    assert "prose (64 tokens), code (9 tokens)" in by_target(found)[0]


def test_one_block_and_an_interval_that_says_little_decide_nothing() -> None:
    assert "looks like a win: 2.00x after 1 block" in by_target(answers([result(None, 2.0, None, n=1)]))[0]
    said = by_target(answers([result(0.06, 0.21, 0.71, n=3)]))[0]
    assert "is slower: 0.21x (95 % 0.06 to 0.71)" in said  # the interval that there is, as tables print it
    assert "no setting to choose" in first_line(answers([]))


@pytest.mark.parametrize(
    ("around", "words"),
    [
        (Conditions(on_battery=True), "; measured on battery"),
        (Conditions(thermal_state="serious"), "; the system slowed down for heat"),
        (Conditions(generation_ns=10**9, processor_ns=10**8), "; 1 of 1 block waited for the processor"),
    ],
    ids=["battery", "heat", "processor"],
)
def test_what_speaks_against_the_times_is_part_of_the_answer(around: Conditions, words: str) -> None:
    for known in (result(1.1, 1.2, 1.3), result(0.5, 0.6, 0.7)):
        (own,) = known.trials
        hot = own._replace(trial=replace(own.trial, conditions=around), on_processor=True)
        (found,) = answers([replace(known, pairs=(TrialPair(own, hot),))])
        assert words in found.sentence and words in by_target([found])[0]
        assert words in answer_object(found).sentence


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
    assert (open_.block_s, open_.more_blocks) == (12.0, 5)
    stages = [StageTime(stage=name, wall_ns=s * 10**9, processor_ns=0) for name, s in TOOK.items()]
    step = next_step(open_, Invocation(), stages)
    assert step is not None and step.seconds == 30 + 6 * 12 * 2, "loading, then six blocks with prompts and judging"
    assert step.command.endswith("--until decided --budget-s 270"), "nothing stands behind it that a shell refuses"
    hopeless = replace(known, standing=replace(known.standing, more_blocks=None))
    assert next_step(answers([hopeless])[0], Invocation()) is None, "no number of blocks decides it"
    single = replace(
        hopeless, standing=replace(hopeless.standing, ratio=Interval(value=1.05)), pairs=open_.arms[0].pairs
    )
    step = next_step(answers([single])[0], Invocation())
    assert step is not None and step.seconds == 4 * 12


def test_the_command_that_decides_names_every_arm_that_is_open() -> None:
    (found,) = answers([result(0.9, 1.05, 1.2), result(0.9, 1.02, 1.2, gamma=8), result(0.5, 0.6, 0.7, gamma=16),
                        result(0.9, 1.01, 1.2, drafter="pld")])  # fmt: skip
    step = next_step(found, Invocation())
    assert step is not None and "--draft small --drafter pld --gamma 4,8 " in step.command


@pytest.mark.parametrize(
    ("pays", "words"),
    [
        (Interval(value=80.0, low=70.0, high=90.0), "comes later, so a whole request of 64 tokens takes longer"),
        (Interval(value=80.0, low=20.0, high=90.0), "comes later, so a whole request of 64 tokens may take longer"),
        (Interval(value=80.0), "comes later, so a whole request of 64 tokens may take longer"),
        (Interval(value=1.0, low=1.0, high=90.0), "may come later, so a whole request of 64 tokens may take longer"),
    ],
)
def test_a_request_is_said_to_take_longer_only_where_its_interval_decides_it(pays: Interval, words: str) -> None:
    assert f"its first token {words}" in answers([result(1.2, 1.5, 1.8, pays_from=pays)])[0].note


def test_texts_that_pay_from_different_lengths_are_told_apart() -> None:
    late = [result(1.2, 1.5, 1.8, text=text, pays_from=Interval(value=n)) for text, n in (("code", 90.0), ("qa", 70.0))]
    (words,) = by_target(answers(late))
    assert "it pays from 90 " in words and "it pays from 70 " in words

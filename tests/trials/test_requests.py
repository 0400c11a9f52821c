"""A whole request: its first token, from which length on a setting pays, and outputs that are loops."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.records import Case, Status, Trial
from mlsd.report.tables.columns import ARM
from mlsd.stats import Interval
from mlsd.trials.acceptance import loop_of
from mlsd.trials.answers import answers, by_target
from mlsd.trials.results import ArmResult, SessionPlan, arm_results, memory_key
from mlsd.trials.sums import pays_from
from tests.analysis.studies import DENSE, as_measured, blocks, failed
from tests.trials.made import result


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_what_repeats_to_the_end_is_a_loop_of_the_shortest_period(before: list[int], part: list[int]) -> None:
    tokens = tuple(before + part * 30)
    period = loop_of(tokens)
    if len(tokens) >= max(24, 9 * len(part)) and len(tokens) <= 90 * len(part):
        assert period is not None and period <= len(part)
    assert period is None or tokens[-period:] == tokens[-2 * period : -period]


def test_text_and_what_is_too_short_to_tell_are_no_loops() -> None:
    assert loop_of(tuple(range(200))) is None and loop_of((7,) * 23) is None and loop_of((7,) * 24) == 1


def test_a_later_first_token_is_paid_back_by_the_tokens_that_the_speedup_saves() -> None:
    # 100 ms later; a plain token takes 20 ms, a drafted one 16: 25 tokens after the first make up for it.
    ratio = Interval(value=1.25, low=1.2, high=1.3)
    found = pays_from([100.0] * 3, [0, 1, 2], 50.0, ratio)
    assert found is not None and found.value == pytest.approx(26.0)
    assert found.low == pytest.approx(1 + 5 / (1 - 1 / 1.3)) and found.high == pytest.approx(1 + 5 / (1 - 1 / 1.2))
    sooner = pays_from([-5.0], [0], 50.0, ratio)
    assert sooner is not None and (sooner.value, sooner.low) == (1.0, None)
    assert pays_from([100.0], [0], 50.0, Interval(value=0.9)) is None and pays_from([], [], 50.0, ratio) is None


def arms(made: list[tuple[Case, Trial]], plan: SessionPlan) -> list[ArmResult]:
    return [one for one in arm_results(as_measured(made), plan) if not one.is_plain]


@pytest.mark.parametrize(("later_ms", "says"), [(0, ""), (900, "so a whole request of 33 tokens takes longer")])
def test_an_arm_tells_of_its_request_and_memory_and_the_answer_where_they_change_the_decision(
    later_ms: int, says: str
) -> None:
    made = blocks(DENSE, alpha=0.9, gammas=(4,), prompts=("code",))
    made = [(of, msgspec.structs.replace(t, draft_prefill_ns=later_ms * 10**6 if of.gamma else None)) for of, t in made]
    sized = {ref: msgspec.structs.replace(ref, n_bytes=10**6) for of, _ in made for ref in [of.target]}
    made = [(msgspec.structs.replace(of, target=sized[of.target]), t) for of, t in made]
    drafting = next(of for of, _ in made if of.gamma)
    (found,) = arms(made, SessionPlan(context_bytes={memory_key(drafting): 500}, limit_bytes=4 * 10**6))
    assert (found.first_token_ms, found.plain_first_token_ms) == pytest.approx((20.0 + later_ms, 20.0))
    assert found.request_s == pytest.approx((20.0 + later_ms) / 1e3 + 32 / (found.tok_s or 0))
    draft = drafting.drafter.draft
    assert found.memory_bytes == (None if draft is None or draft.n_bytes is None else 10**6 + 500 + draft.n_bytes)
    left = None if found.memory_bytes is None else 4 * 10**6 - found.memory_bytes
    assert found.memory_left_bytes == left and (left is None or ARM["memory"][1](found).text == "2.00 MB, 2.00 MB left")
    assert found.pays_from is not None and (found.pays_from.value > 33) == bool(says)
    (answer,) = answers([found])
    assert (
        answer.use == "on" and says in answer.note and bool(says) == bool(answer.note) and answer.note in answer.words
    )


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


def test_an_answer_names_a_loop_and_an_arm_that_fails_each_time_keeps_no_off_open() -> None:
    loop = [
        (of, msgspec.structs.replace(t, tokens=(3, 4) * 16 + (3,)))
        for of, t in blocks(DENSE, alpha=0.9, gammas=(4,), prompts=("code",))
    ]
    (found,) = arms(loop, SessionPlan())
    assert found.n_loops == 3 and "its output repeats itself" in answers([found])[0].words
    made = blocks(DENSE, alpha=0.1, gammas=(4, 8), prompts=("code",))
    lost = [(of, failed(of, t.block, t.repeat, "no memory") if of.gamma == 8 else t) for of, t in made]
    (answer,) = answers(arms(lost, SessionPlan()))
    assert answer.use == "off" and answer.words.endswith("; failed each time: tiny-draft, gamma 8: no memory")


def test_what_is_not_valid_pays_nowhere_and_takes_no_time() -> None:
    wrong = {"status": Status.INVALID, "reason": "unchecked"}
    made = blocks(DENSE, alpha=0.9, gammas=(4,), prompts=("code",))
    made = [(of, msgspec.structs.replace(t, **(wrong if of.gamma else {}))) for of, t in made]
    (found,) = arms(made, SessionPlan())
    assert found.tok_s is not None
    assert (found.request_s, found.pays_from) == (None, None)

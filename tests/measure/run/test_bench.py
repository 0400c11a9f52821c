"""Order of arms, and the statistics of a bench."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlsd.measure.run.bench import BenchRequest, bench_cases, interleave

from mlsd.errors import InputError
from mlsd.measure.messages import ModelFile
from mlsd.records import DRAFT_MODEL, DrafterSpec, ModelRef, PromptRef
from mlsd.stats import median, paired_ratio, relative_spread

TARGET = ModelFile(ref=ModelRef(id="t", sha256="0"), path="t.gguf")


def request(**changes: object) -> BenchRequest:
    given = {
        "target": TARGET,
        "prompt": PromptRef(key="p", sha256="1"),
        "prompt_text": "text",
        "drafter": DrafterSpec(name=DRAFT_MODEL, draft=ModelRef(id="d", sha256="2")),
        "gammas": (1, 4),
    }
    return BenchRequest(**{**given, **changes})  # type: ignore[arg-type]


def test_every_gamma_becomes_a_case_beside_the_baseline() -> None:
    assert [(case.arm, case.gamma) for case in bench_cases(request())] == [("ar", 0), ("sd", 1), ("sd", 4)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gammas": (0,)}, "--gamma holds 0"),
        ({"gammas": (4, -2)}, "--gamma holds -2"),
        ({"n_predict": 1}, "--n-predict is 1"),
        ({"repeats": 0}, "--repeats is 0"),
    ],
)
def test_a_number_that_means_nothing_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bench_cases(request(**change))


@given(st.integers(1, 6), st.integers())
def test_each_block_holds_every_arm_once_and_the_first_begins_with_the_baseline(repeats: int, seed: int) -> None:
    cases = bench_cases(request(gammas=(1, 2, 4)))
    slots = interleave(cases, repeats, seed)
    assert slots[0].case.arm == "ar"
    for block in range(repeats):
        own = [slot for slot in slots if slot.block == block]
        assert {slot.case.id for slot in own} == {case.id for case in cases}
        assert [slot.position for slot in own] == list(range(len(cases)))


def test_the_order_is_random_but_repeats_with_its_seed() -> None:
    cases = bench_cases(request(gammas=(1, 2, 4, 8)))
    orders = {tuple(slot.case.gamma for slot in interleave(cases, 4, seed)) for seed in range(8)}
    assert len(orders) > 1
    assert interleave(cases, 4, 3) == interleave(cases, 4, 3)


def test_paired_ratio_of_constant_pairs_is_exact() -> None:
    result = paired_ratio([20.0, 30.0, 40.0], [10.0, 15.0, 20.0])
    assert result.value == pytest.approx(2.0)
    assert result.low == pytest.approx(2.0)
    assert result.high == pytest.approx(2.0)


def test_paired_ratio_has_students_interval_on_the_log_scale() -> None:
    result = paired_ratio([math.e, 1.0, math.e], [1.0, 1.0, 1.0])
    half = 4.302652729911275 * math.sqrt(1 / 3) / math.sqrt(3)  # t(0.975, 2) * sd of (1, 0, 1) / sqrt(3)
    assert result.low is not None
    assert math.log(result.value) == pytest.approx(2 / 3)
    assert math.log(result.low) == pytest.approx(2 / 3 - half)
    assert result.decided() is False


def test_one_pair_gives_no_interval() -> None:
    result = paired_ratio([2.0], [1.0])
    assert (result.value, result.low, result.decided()) == (2.0, None, None)


def test_median_and_spread_of_nothing_are_not_measured() -> None:
    assert (median([]), relative_spread([1.0])) == (None, None)
    assert relative_spread([9.0, 10.0, 11.0]) == pytest.approx(0.1)

"""The simulations of `benchmarks/truth_intervals.py`, small and seeded: what is printed as 95 % holds in about 95 %."""

from __future__ import annotations

import pytest

from benchmarks import truth_intervals as truth

# Three standard errors of a share of 0.95 over so many studies.
N, SLACK = 600, 0.027


def covers(share: float) -> bool:
    return 0.95 - SLACK <= share <= 0.95 + SLACK


def test_intervals_over_blocks_of_one_prompt_and_over_prompts_cover() -> None:
    assert covers(truth.single_prompt(3, N))
    for n_prompts, n_repeats in ((3, 3), (3, 10), (2, 3)):
        assert covers(truth.pooled(n_prompts, n_repeats, N))


@pytest.mark.parametrize("name", sorted(truth.CLAIMS))
def test_intervals_of_claims_cover(name: str) -> None:
    assert covers(truth.claim(name, N))


def test_intervals_of_fits_cover_and_six_widths_of_a_roofline_are_no_constant() -> None:
    assert covers(truth.fitted_line(6, 200))
    assert truth.constant_chosen(10) == 0.0

"""The simulations of benchmarks, small and seeded: what is printed as 95 % holds in about 95 %."""

import pytest

from benchmarks import decisions as simulated
from benchmarks import truth_intervals as truth

pytestmark = pytest.mark.heavy  # hundreds of simulated sessions each

N, OF_CLAIMS = 600, 200  # studies


def covers(share: float, n: int = N) -> bool:
    """Within three standard errors of 0.95 over so many studies."""
    return abs(share - 0.95) <= 3 * (0.95 * 0.05 / n) ** 0.5


def test_intervals_over_blocks_of_one_prompt_and_over_prompts_cover() -> None:
    assert covers(truth.single_prompt(3, N))
    for n_prompts, n_repeats in ((3, 3), (3, 10), (2, 3)):
        assert covers(truth.pooled(n_prompts, n_repeats, N))


@pytest.mark.parametrize("name", sorted(truth.CLAIMS))
def test_intervals_of_claims_cover(name: str) -> None:
    assert covers(truth.claim(name, OF_CLAIMS), OF_CLAIMS)


def test_intervals_of_fits_cover_and_six_widths_of_a_roofline_are_no_constant() -> None:
    assert covers(truth.fitted_line(6, 200))
    assert truth.constant_chosen(10) == 0.0


@pytest.mark.parametrize("kind", sorted(simulated.NOISE))
def test_sessions_looked_at_after_every_block_decide_falsely_in_five_of_a_hundred_at_most(kind: str) -> None:
    found = simulated.null_sessions(kind, 4, 60)
    assert found.false <= 0.05 + 0.03
    assert found.covered >= 0.93


@pytest.mark.parametrize("processes", ["of a block", "of the session"])
@pytest.mark.parametrize("size", [0.002, 0.03])
def test_servers_whose_processes_differ_are_falsely_decided_in_five_of_a_hundred_sessions_at_most(
    processes: simulated.Processes, size: float
) -> None:
    found = simulated.null_sessions("normal noise", 2, 60, size, processes=processes)
    assert found.false <= 0.05 + 0.03
    assert found.covered >= 0.93


def test_blocks_of_the_same_prompts_looked_at_after_each_decide_falsely_in_five_of_a_hundred_at_most() -> None:
    assert simulated.null_workloads("normal noise", 4, 100).false <= 0.05 + 0.03


@pytest.mark.parametrize("kind", sorted(simulated.NOISE))
def test_intervals_of_fixed_repeats_all_hold_in_95_of_100_sessions(kind: str) -> None:
    found = simulated.fixed_sessions(kind, 4, 4, 300)
    assert found.covered >= 0.95 - 0.027


@pytest.mark.parametrize("kind", sorted(simulated.NOISE))
def test_no_surface_calls_an_arm_that_gains_nothing_faster_or_slower_in_more_than_five_of_a_hundred_sessions(
    kind: str,
) -> None:
    assert max(simulated.false_words(kind, 4, 40).values()) <= 0.05 + 0.025


def test_whole_searches_find_nothing_where_nothing_is() -> None:
    found = simulated.null_waves("normal noise", 12)
    assert found.false <= 1 / 12 and found.covered >= 0.93

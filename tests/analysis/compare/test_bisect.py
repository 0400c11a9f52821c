"""A search over builds finds the first that changed, in few turns, and says how sure it is."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from mlsd.analysis.compare.bisect import SURE, first_changed, least_turns, next_build
from mlsd.analysis.compare.gate import Measure, Series, judge
from mlsd.errors import AnalysisError

N_BUILDS = 10
PLAIN = Measure(name="plain", unit="tok/s", sense="rate")


def searched(seed: int, change: float, noise: float) -> tuple[int, int, int]:
    """A whole search over simulated builds: the build found, the one that changed, the turns it took."""
    rng = random.Random(seed)
    truth = rng.randrange(1, N_BUILDS)

    def turn(place: int) -> float:
        return rng.gauss(change if place >= truth else 0.0, noise)

    sides: tuple[list[float], list[float], list[float]] = ([], [], [])
    observed: list[tuple[int, float]] = []
    for _ in range(200):
        a, b, control = turn(0), turn(N_BUILDS - 1), turn(0)
        for side, value in zip(sides, (a, b, control), strict=True):
            side.append(math.exp(value))
        observed += [(N_BUILDS - 1, b - a), (0, control - a)]
        own, other, again = map(tuple, sides)
        found = judge([Series(measure=PLAIN, a=own, b=other, control=again)])[0]
        if len(own) >= 4 and found.verdict != "undecided":
            break
    turns = 3 * len(sides[0])
    while (place := next_build(observed, N_BUILDS)) is not None:
        observed.append((place, turn(place) - turn(0)))
        turns += 2
    chances = first_changed(observed, N_BUILDS)
    return 1 + chances.index(max(chances)), truth, turns


@pytest.mark.parametrize(("noise", "most_turns"), [(0.002, 25), (0.01, 40), (0.02, 80)])
def test_of_ten_builds_the_first_slower_one_is_found_in_95_of_100_searches(noise: float, most_turns: int) -> None:
    found = [searched(seed, -0.05, noise) for seed in range(100)]
    right = sum(a == truth for a, truth, _ in found)
    turns = statistics.mean(n for _, _, n in found)
    print(f"noise {noise}: {right} of 100 in {turns:.0f} turns; {least_turns(N_BUILDS)} without noise")
    assert right >= 95
    assert turns <= most_turns


def test_a_measure_without_noise_is_halved_like_a_list() -> None:
    for truth in range(1, N_BUILDS):
        observed = [(N_BUILDS - 1, -0.2), (0, 0.0)] * 4
        tries = 0
        while (place := next_build(observed, N_BUILDS)) is not None:
            observed.append((place, -0.2 if place >= truth else 0.0))
            tries += 1
        chances = first_changed(observed, N_BUILDS)
        assert chances.index(max(chances)) == truth - 1
        assert tries <= math.ceil(math.log2(N_BUILDS - 1))


def test_the_first_try_is_in_the_middle() -> None:
    assert next_build([(9, -0.05), (0, 0.001), (9, -0.051), (0, -0.001)], N_BUILDS) in (4, 5)


def test_the_chances_are_those_of_builds_and_add_up() -> None:
    chances = first_changed([(3, 1.0), (3, 1.1), (0, 0.0), (2, 0.05)], 4)
    assert sum(chances) == pytest.approx(1.0)
    assert max(chances) == chances[2] > SURE / 2


def test_before_the_newest_was_seen_twice_nothing_is_said() -> None:
    with pytest.raises(AnalysisError, match="newest"):
        first_changed([(3, 1.0)], 4)

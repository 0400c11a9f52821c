"""Intervals of a proportion over texts: known answers, and the truth inside them in simulations."""

import numpy as np
import pytest

from mlsd.trials.proportions import Counts, pooled


def test_of_one_text_it_is_clopper_and_pearsons() -> None:
    none = pooled([Counts(0.0, 100)])
    assert (none.low, none.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 100), rel=1e-6))
    half = pooled([Counts(0.5, 20)])
    assert (half.low, half.high) == (pytest.approx(0.2720, abs=1e-4), pytest.approx(0.7280, abs=1e-4))


def test_texts_copied_whole_leave_an_interval_that_excludes_four_per_cent() -> None:
    """The tiny family: 61, 44, 35 and 100 % accepted were "undecided, 0.000 to 1.000"."""
    found = pooled([Counts(share, 12) for share in (0.61, 0.44, 0.35, 1.0)])
    assert found.low is not None and found.low > 0.04
    copied = pooled([Counts(1.0, 12)] * 4)
    assert (copied.value, copied.high) == (1.0, 1.0) and copied.low is not None and copied.low > 0.7


@pytest.mark.parametrize("m", [2, 4, 8])
@pytest.mark.parametrize(("mean", "alike"), [(0.04, 200), (0.3, 3), (0.3, 20), (0.74, 3), (0.95, 20)])
def test_the_truth_lies_inside_95_times_of_100(m: int, mean: float, alike: float) -> None:
    """Texts' own rates are Beta-distributed; where all but a rare text lie at 0 or 1 nothing can show the rare one."""
    rng, inside, n = np.random.default_rng(3), 0, 300
    for _ in range(n):
        sizes = rng.integers(30, 120, m)
        rates = rng.binomial(sizes, rng.beta(mean * alike, (1 - mean) * alike, m)) / sizes
        found = pooled([Counts(float(rate), int(size)) for rate, size in zip(rates, sizes, strict=True)])
        assert found.low is not None and found.high is not None
        inside += found.low <= mean <= found.high
    assert inside / n >= 0.92  # of a true 0.95 the standard deviation of this share is 0.013

"""The n-gram cache: counts as a scan of the text would, and proposes only what the counts are clear about."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlsd.drafters.lookup.ngram_cache import NgramCache, Options
from mlsd.engine.verify import Verification
from tests.engine.fake import FakeClock


def begun(prompt: Sequence[int], thresholds: str = "lax") -> NgramCache:
    drafter = NgramCache(Options(thresholds=thresholds), FakeClock())  # type: ignore[arg-type]
    drafter.begin(prompt, np.random.default_rng(0))
    return drafter


@given(prompt=st.lists(st.integers(0, 3), min_size=1, max_size=30), more=st.lists(st.integers(0, 3), max_size=30))
def test_a_proposal_is_the_clear_favourite_of_a_scan(prompt: list[int], more: list[int]) -> None:
    drafter = begun(prompt)
    drafter.observe(Verification(accepted=0, committed=tuple(more)))
    text = prompt + more
    expected: set[int] = set()
    for n in range(min(4, len(text)), 0, -1):
        end = text[len(text) - n :]
        counts = Counter(text[i + n] for i in range(len(text) - n) if text[i : i + n] == end)
        least, percent = ((2, 66), (2, 50), (1, 50), (1, 50))[n - 1]
        if counts and counts.total() >= least and 100 * max(counts.values()) >= percent * counts.total():
            expected = {token for token, count in counts.items() if count == max(counts.values())}
            break
    proposed = drafter.propose(1).tokens
    assert set(proposed) <= expected
    assert bool(proposed) == bool(expected)


def test_proposals_go_on_through_what_was_just_proposed() -> None:
    assert begun([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]).propose(3).tokens == (3, 4, 5)


def test_strict_thresholds_want_more_evidence() -> None:
    text = [7, 8, 9, 7, 8, 9, 7, 8]
    assert begun(text).propose(1).tokens == (9,)
    assert begun(text, "strict").propose(1).tokens == ()
    assert begun([7, 8, 9] * 4 + [7, 8], "strict").propose(1).tokens == (9,)

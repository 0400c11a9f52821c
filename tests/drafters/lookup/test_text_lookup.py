"""Prompt lookup and the n-gram cache: a round proposes what a scan of the whole text would."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlsd.drafters.lookup.ngram_cache import NgramCache, NgramCacheOptions
from mlsd.drafters.lookup.pld import PldOptions, PromptLookup
from mlsd.engine.verify import Verification
from tests.engine.fake import FakeClock


def searched(text: Sequence[int], k: int, options: PldOptions) -> tuple[int, ...]:
    """The definition: try every place, the longest n-gram first."""
    for n in range(options.ngram, options.min_ngram - 1, -1):
        ends = [
            end
            for end in range(n, len(text))
            if tuple(text[end - n : end]) == tuple(text[len(text) - n :])
            and end + (k if options.full else 1) <= len(text)
        ]
        if ends:
            end = ends[0] if options.match == "first" else ends[-1]
            return tuple(text[end : end + k])
    return ()


def looking_up(options: PldOptions, prompt: Sequence[int]) -> PromptLookup:
    drafter = PromptLookup(options, FakeClock())
    drafter.begin(prompt, np.random.default_rng(0))
    return drafter


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(
    prompt=tokens,
    rounds=st.lists(tokens, max_size=8),
    k=st.integers(1, 6),
    ngram=st.integers(1, 5),
    shortest=st.integers(1, 5),
    match=st.sampled_from(["first", "last"]),
    full=st.booleans(),
)
def test_each_round_proposes_what_a_search_of_the_whole_text_finds(
    prompt: list[int], rounds: list[list[int]], k: int, ngram: int, shortest: int, match: str, full: bool
) -> None:
    options = PldOptions(ngram=ngram, min_ngram=min(shortest, ngram), match=match, full=full)
    drafter = looking_up(options, prompt)
    text = list(prompt)
    for committed in rounds:
        drafter.observe(Verification(accepted=0, committed=tuple(committed)))
        text += committed
        assert drafter.propose(k).tokens == searched(text, k, options)


def test_a_new_generation_forgets_the_last_one() -> None:
    drafter = looking_up(PldOptions(), [1, 2, 3, 1, 2])
    assert drafter.propose(2).tokens == (3, 1)
    drafter.begin([7, 8], np.random.default_rng(0))
    assert drafter.propose(2).tokens == ()
    assert drafter.stats()["match_rounds"] == 0


def test_rounds_with_and_without_a_match_are_counted_apart() -> None:
    drafter = looking_up(PldOptions(), [1, 2, 1])
    drafter.propose(1)
    drafter.observe(Verification(accepted=0, committed=(9,)))
    drafter.propose(1)
    drafter.propose(1)
    assert (drafter.stats()["match_rounds"], drafter.stats()["no_match_rounds"]) == (1, 2)


def test_without_a_match_a_made_up_token_can_be_asked_for() -> None:
    assert looking_up(PldOptions(no_match="dummy"), [1, 2]).propose(3).tokens == (100,)


def counting(prompt: Sequence[int], thresholds: str = "lax") -> NgramCache:
    drafter = NgramCache(NgramCacheOptions(thresholds=thresholds), FakeClock())  # type: ignore[arg-type]
    drafter.begin(prompt, np.random.default_rng(0))
    return drafter


@given(prompt=st.lists(st.integers(0, 3), min_size=1, max_size=30), more=st.lists(st.integers(0, 3), max_size=30))
def test_a_proposal_is_the_clear_favourite_of_a_scan(prompt: list[int], more: list[int]) -> None:
    drafter = counting(prompt)
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
    assert counting([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]).propose(3).tokens == (3, 4, 5)


def test_strict_thresholds_want_more_evidence() -> None:
    text = [7, 8, 9, 7, 8, 9, 7, 8]
    assert counting(text).propose(1).tokens == (9,)
    assert counting(text, "strict").propose(1).tokens == ()
    assert counting([7, 8, 9] * 4 + [7, 8], "strict").propose(1).tokens == (9,)

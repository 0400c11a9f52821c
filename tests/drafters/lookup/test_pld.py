"""Prompt lookup: a round equals a search through the whole text, and the output is the target's own."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlsd.drafters.lookup.pld import Options, PromptLookup
from mlsd.engine.verify import Verification
from tests.engine.fake import FakeClock


def searched(text: Sequence[int], k: int, options: Options) -> tuple[int, ...]:
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


def begun(options: Options, prompt: Sequence[int]) -> PromptLookup:
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
    options = Options(ngram=ngram, min_ngram=min(shortest, ngram), match=match, full=full)
    drafter = begun(options, prompt)
    text = list(prompt)
    for committed in rounds:
        drafter.observe(Verification(accepted=0, committed=tuple(committed)))
        text += committed
        assert drafter.propose(k).tokens == searched(text, k, options)


def test_a_new_generation_forgets_the_last_one() -> None:
    drafter = begun(Options(), [1, 2, 3, 1, 2])
    assert drafter.propose(2).tokens == (3, 1)
    drafter.begin([7, 8], np.random.default_rng(0))
    assert drafter.propose(2).tokens == ()
    assert drafter.stats()["match_rounds"] == 0


def test_rounds_with_and_without_a_match_are_counted_apart() -> None:
    drafter = begun(Options(), [1, 2, 1])
    drafter.propose(1)
    drafter.observe(Verification(accepted=0, committed=(9,)))
    drafter.propose(1)
    drafter.propose(1)
    assert (drafter.stats()["match_rounds"], drafter.stats()["no_match_rounds"]) == (1, 2)


def test_without_a_match_a_made_up_token_can_be_asked_for() -> None:
    assert begun(Options(no_match="dummy"), [1, 2]).propose(3).tokens == (100,)

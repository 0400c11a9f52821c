"""Drafts of another vocabulary: exact whatever the two tokenizers make of a text, and right where they agree on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mlsd.drafters.other_vocabulary import _check_text, _tokens
from mlsd.errors import VocabularyError
from mlsd.planning.prompts import load_prompt
from mlsd.records import Sampling
from tests.drafters.arena import Arena, first
from tests.engine.fake import FakeTokenizer

N_PREDICT = 40


def test_a_trained_draft_is_right_through_text_as_well(mixed: Arena) -> None:
    prompt = mixed.model("dense").tokenize(load_prompt("code").text)
    run = mixed.run("dense", "text-draft", 4, prompt, 40, draft="draft")
    mixed.assert_exact("dense", prompt, run)
    assert run.accepted > 0.1 * run.proposed > 0


def test_sampled_output_accepts_by_the_rule(mixed: Arena) -> None:
    prompt = mixed.model("dense").tokenize(load_prompt("code").text)
    runs = (
        mixed.run(
            "dense", "text-draft", 3, prompt, 40, draft="draft", sampling=Sampling(temperature=1.0),
            rng=np.random.default_rng(seed),
        )
        for seed in range(24)
    )  # fmt: skip
    assert len(first(runs, lambda made: 0 < made.accepted < made.proposed).tokens) == 40


class Pairs(FakeTokenizer):
    """Reads two characters as one token where it can."""

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> tuple[int, ...]:
        return tuple(hash(text[i : i + 2]) for i in range(0, len(text), 2))


class Mute(FakeTokenizer):
    """Its tokens are no text."""

    def detokenize(self, tokens: Sequence[int]) -> str:
        return ""


def test_text_is_read_behind_what_it_follows_unless_both_share_a_token() -> None:
    model = Pairs()
    assert _tokens(model, "ab", "cd") == [hash("cd")]
    assert _tokens(model, "abc", "de") == [hash("de")]  # behind "abc" it would begin inside a token
    assert _tokens(model, "abc", "") == []


def test_a_model_whose_tokens_are_no_text_is_refused() -> None:
    _check_text(FakeTokenizer())
    with pytest.raises(VocabularyError, match="no text in common"):
        _check_text(Mute())

"""Prompt lookup: copy from the text so far; good where the output repeats its input (summaries, edits, retrieval)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters.lookup.text_lookup import TextLookup
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.options import Preset, Range, Values, small_model_study
from mlsd.engine.verify import Proposal

# What Spec-Bench's code proposes when it finds nothing; only there for runs that must repeat its counts.
_DUMMY_TOKEN = 100


@drafting_method(
    "pld",
    summary=(
        "Prompt lookup: propose what followed an earlier occurrence of the last few tokens, in prompt and output "
        "together."
    ),
    source=(
        "Saxena 2023, prompt-lookup-decoding; the variants of Spec-Bench (Xia et al. 2024, arXiv 2401.07851) and of "
        "llama.cpp's ngram-simple (one long n-gram, its last occurrence)"
    ),
    presets=(
        small_model_study("qwen2.5-1.5b", 20, ngram=3),
        small_model_study("smollm2", 15, ngram=3),
        small_model_study("llama-3.2-1b", 15, ngram=3),
        small_model_study("vicuna-7b", 10, ngram=3),
        Preset(
            name="ngram-simple",
            gamma=48,
            options={"ngram": 12, "min_ngram": 12, "match": "last"},
            source="llama.cpp's ngram-simple, its default",
        ),
    ),
    space={
        "gamma": Range(low=2, high=20),
        "ngram": Range(low=1, high=5),
        "match": Values(values=("first", "last")),
    },
)
class PldOptions(MethodOptions, frozen=True, kw_only=True):
    """Options of prompt lookup."""

    ngram: Annotated[int, Meta(ge=1, le=64, description="the longest end of the text to look for")] = 3
    min_ngram: Annotated[int, Meta(ge=1, le=64, description="the shortest")] = 1
    match: Annotated[Literal["first", "last"], Meta(description="which earlier occurrence")] = "first"
    full: Annotated[bool, Meta(description="only occurrences that as many tokens follow as may be proposed")] = False
    no_match: Annotated[
        Literal["ar", "dummy"], Meta(description="a round without a match: plain decoding, or one made-up token")
    ] = "ar"

    def open(self, setup: DrafterSetup) -> PromptLookup:
        return PromptLookup(self, setup.clock)


class PromptLookup(TextLookup):
    """A chain copied from the text so far; the longest n-gram that occurred before decides."""

    def __init__(self, options: PldOptions, clock: Clock) -> None:
        self._options = options
        self._lengths = range(options.ngram, min(options.ngram, options.min_ngram) - 1, -1)
        super().__init__(clock)

    def _forget(self) -> None:
        super()._forget()
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}  # where the text goes on after each n-gram

    def _take_in(self, tokens: Sequence[int]) -> None:
        text, places = self._text, self._places
        for token in tokens:
            end = len(text)
            for n in self._lengths:
                if n <= end:
                    places.setdefault(tuple(text[end - n :]), []).append(end)
            text.append(token)

    def propose(self, k: int) -> Proposal:
        draft = super().propose(k)
        if not draft.tokens and self._options.no_match == "dummy":
            return Proposal(tokens=(_DUMMY_TOKEN,))
        return draft

    def _look_up(self, k: int) -> Proposal:
        text, last_start = self._text, len(self._text) - (k if self._options.full else 1)
        for n in self._lengths:
            places = self._places.get(tuple(text[-n:]), []) if n <= len(text) else []
            i = 0 if self._options.match == "first" else bisect_right(places, last_start) - 1
            if 0 <= i < len(places) and places[i] <= last_start:
                return Proposal(tokens=tuple(text[places[i] : places[i] + k]))
        return Proposal()

"""Prompt lookup: propose what followed an earlier occurrence of the last few tokens, in prompt and output together.

Needs no model and no training; good where the output repeats its input (summaries, edits, retrieval).
Sources: Saxena 2023, prompt-lookup-decoding; the variants of Spec-Bench (Xia et al. 2024, arXiv 2401.07851) and of
llama.cpp's ngram-simple (one long n-gram, its last occurrence).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.drafters.lookup.ngram_index import NgramIndex
from mlsd.drafters.lookup.tally import ProposalTally, TextLookup
from mlsd.drafters.options import SMALL_MODEL_STUDY, Choice, Preset, Span, read_options
from mlsd.engine.drafter import Draft
from mlsd.records import Record

# What Spec-Bench's code proposes when it finds nothing; only there for runs that must repeat its counts.
_DUMMY_TOKEN = 100


class Options(Record, frozen=True, kw_only=True):
    """Options of prompt lookup."""

    ngram: Annotated[int, Meta(ge=1, le=64)] = 3  # the longest end of the text to look for
    min_ngram: Annotated[int, Meta(ge=1, le=64)] = 1  # the shortest
    match: Literal["first", "last"] = "first"  # which earlier occurrence
    full: bool = False  # only occurrences that as many tokens follow as may be proposed
    no_match: Literal["ar", "dummy"] = "ar"  # a round without a match: plain decoding, or one made-up token


OPTIONS = Options
SPACE = {
    "gamma": Span(low=2, high=20),
    "ngram": Span(low=1, high=5),
    "match": Choice(values=("first", "last")),
}

PRESETS = {
    "qwen2.5-1.5b": Preset(gamma=20, values={"ngram": 3}, source=SMALL_MODEL_STUDY),
    "smollm2": Preset(gamma=15, values={"ngram": 3}, source=SMALL_MODEL_STUDY),
    "llama-3.2-1b": Preset(gamma=15, values={"ngram": 3}, source=SMALL_MODEL_STUDY),
    "vicuna-7b": Preset(gamma=10, values={"ngram": 3}, source=SMALL_MODEL_STUDY),
    "ngram-simple": Preset(
        gamma=48, values={"ngram": 12, "min_ngram": 12, "match": "last"}, source="llama.cpp's ngram-simple, its default"
    ),
}


def make(bench: DrafterBench) -> PromptLookup:
    """Prompt lookup with the options of the spec."""
    return PromptLookup(read_options(bench.spec, Options, PRESETS), bench.clock)


class PromptLookup(TextLookup):
    """A chain copied from the text so far; the longest n-gram that occurred before decides."""

    name = "pld"

    def __init__(self, options: Options, clock: Clock) -> None:
        super().__init__()
        self._options = options
        self._lengths = range(options.ngram, min(options.ngram, options.min_ngram) - 1, -1)
        self._clock = clock
        self._index = NgramIndex(self._lengths)

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Index the prompt."""
        self._tally = ProposalTally()
        self._index = NgramIndex(self._lengths)
        self._index.extend(prompt)
        self._pending = []

    def propose(self, k: int) -> Draft:
        """Up to `k` tokens that followed an earlier occurrence; none without a match."""
        started_ns = self._clock.now_ns()
        self._index.extend(self._pending)
        self._pending = []
        start = self._find(k)
        tokens = () if start is None else tuple(self._index.tokens[start : start + k])
        self._tally.add(bool(tokens), self._clock.now_ns() - started_ns)
        if not tokens and self._options.no_match == "dummy":
            tokens = (_DUMMY_TOKEN,)
        return Draft(tokens=tokens)

    def _find(self, k: int) -> int | None:
        find = self._index.first if self._options.match == "first" else self._index.last
        n_follow = k if self._options.full else 1
        for n in self._lengths:
            start = find(n, n_follow)
            if start is not None:
                return start
        return None

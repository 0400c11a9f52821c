"""Lookahead decoding: a window of guesses, and the pool of n-grams that comes of it.

Each pass carries the newest token, candidates from the pool, and a window of W columns and N - 1 levels. The pass gives
each column one token more; after N - 1 passes it is an n-gram of the pool. All is one tree: level 0 of the window is a
path from the root, below its i-th token hang the higher levels of column i, which are never accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters.lookup.text_lookup import TextLookup
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.options import Preset, Range, small_model_study
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.drafters.trees import Commit, tree_options
from mlsd.engine.tree import ROOT, Tree, merge
from mlsd.engine.verify import Proposal, Verification


def _preset(name: str, window: int, ngram: int, guesses: int) -> Preset:
    gamma = guesses * (ngram - 1)
    return small_model_study(name, gamma, window=window, ngram=ngram, guesses=guesses)


@drafting_method(
    "lookahead",
    summary=(
        "Lookahead decoding: the target guesses its own future in a window that rides along in every pass, and checks "
        "itself."
    ),
    source="Fu et al. 2024, Lookahead Decoding (arXiv 2402.02057)",
    presets=(
        _preset("qwen2.5-1.5b", 20, 4, 20),
        _preset("smollm2", 20, 4, 20),
        _preset("llama-3.2-1b", 10, 6, 10),
        _preset("vicuna-7b", 7, 5, 7),
        msgspec.structs.replace(_preset("llama.cpp", 15, 5, 15), source="llama.cpp's example, its default"),
    ),
    space={
        "gamma": Range(low=4, high=60),
        "window": Range(low=3, high=20),
        "ngram": Range(low=3, high=6),
        "guesses": Range(low=3, high=20),
    },
    chains_instead="Prompt lookup (pld) and REST draft chains for such targets.",
)
class LookaheadOptions(MethodOptions, frozen=True, kw_only=True):
    """Options of lookahead decoding."""

    window: Annotated[int, Meta(ge=2, le=100, description="W: columns")] = 15
    ngram: Annotated[int, Meta(ge=3, le=10, description="N: length of the pool's n-grams")] = 5
    guesses: Annotated[int, Meta(ge=1, le=100, description="G: n-grams kept and checked for one token")] = 15
    commit: Commit = "keep"

    def open(self, setup: DrafterSetup) -> Lookahead:
        return Lookahead(self, setup.clock, n_candidates=setup.opening.case.gamma)

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        n_window = self.window * (self.ngram - 1) - 1
        n_rows, n_leaves = opening.case.gamma + n_window, min(opening.case.gamma, self.guesses) + self.window
        return opening.on_target(tree_options(opening.target, n_rows=n_rows, n_leaves=n_leaves, commit=self.commit))


class Lookahead(TextLookup):
    """Window and pool of one generation."""

    counted = (*TextLookup.counted, "candidate_rows", "window_rows")  # also the rows of both branches

    def __init__(self, options: LookaheadOptions, clock: Clock, *, n_candidates: int) -> None:
        self._options, self._n_candidates = options, n_candidates
        super().__init__(clock)

    def _forget(self) -> None:
        super()._forget()
        self._levels: list[list[int]] = []  # level 0 first; its first token is the newest committed one
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}
        self._last = 0
        self._ends: tuple[int, ...] = ()

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._forget()
        self._levels = rng.choice(np.asarray(prompt), (self._options.ngram - 1, self._options.window)).tolist()

    def _look_up(self, k: int) -> Proposal:
        """The pool's n-grams after the newest token, and the window."""
        if self._ends:
            self._learn()
        self._levels[0][0] = self._last
        ngrams = reversed(self._pool.get(self._last, {}))  # the newest first
        candidates = merge(ngrams, self._n_candidates, min(k, self._options.ngram - 1))
        tree = self._with_window(candidates)
        self._tally["candidate_rows"] += tree.n_candidates
        self._tally["window_rows"] += tree.n_window
        return Proposal(tree=tree)

    def _learn(self) -> None:
        """Each column and the target's token after it is an n-gram; then the window moves up by one level."""
        for column, end in enumerate(self._ends):
            first, *rest = (level[column] for level in self._levels)
            ngrams = self._pool.setdefault(first, {})
            ngram = (*rest, end)
            ngrams.pop(ngram, None)
            ngrams[ngram] = None
            if len(ngrams) > self._options.guesses:
                del ngrams[next(iter(ngrams))]
        self._levels = [*self._levels[1:], list(self._ends)]
        self._ends = ()

    def _with_window(self, candidates: Tree) -> Tree:
        tokens, parents = list(candidates.tokens), list(candidates.parents)

        def add(token: int, parent: int) -> int:
            tokens.append(token)
            parents.append(parent)
            return len(tokens) - 1

        base, *higher = self._levels
        node = ROOT
        for column in range(self._options.window):
            if column:
                node = add(base[column], node)
            above = node
            for level in higher:
                above = add(level[column], above)
        n_window = len(tokens) - len(candidates.tokens)
        return Tree(tokens=tuple(tokens), parents=tuple(parents), n_window=n_window)

    def observe(self, verification: Verification) -> None:
        """Keep what the pass said of the window; the next proposal learns from it."""
        self._ends = verification.window
        if verification.committed:
            self._last = verification.committed[-1]

    def stats(self) -> dict[str, float]:
        """The same, with the n-grams in the pool."""
        return {**super().stats(), "pool_ngrams": float(sum(map(len, self._pool.values())))}

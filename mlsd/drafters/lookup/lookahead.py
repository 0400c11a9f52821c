"""Lookahead decoding: the target guesses its own future in a window that rides along in every pass, and checks itself.

Each pass carries the newest token, candidates from a pool of n-grams, and a window of W columns and N - 1 levels. A
column is a guess at the text some places ahead; the pass gives each one token more, so after N - 1 passes it has become
an n-gram that goes into the pool. Candidates and window are one tree: level 0 of the window is a path from the root,
and below its i-th token hang the higher levels of column i. The window's nodes ride and are never accepted.
Source: Fu et al. 2024, Lookahead Decoding (arXiv 2402.02057), section 3. As there, the window moves once a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.drafters.lookup.tally import ProposalTally
from mlsd.drafters.options import SMALL_MODEL_STUDY, Preset, Span, read_options
from mlsd.drafters.trees import Commit, check_holds_trees, tree_options
from mlsd.engine.drafter import Draft, Outcome
from mlsd.engine.session import SessionOptions
from mlsd.engine.tree import ROOT, Tree, merge
from mlsd.errors import UnsupportedError
from mlsd.records import DrafterSpec, Record


class Options(Record, frozen=True, kw_only=True):
    """Options of lookahead decoding."""

    window: Annotated[int, Meta(ge=2, le=100)] = 15  # W: columns
    ngram: Annotated[int, Meta(ge=3, le=10)] = 5  # N: length of the pool's n-grams
    guesses: Annotated[int, Meta(ge=1, le=100)] = 15  # G: n-grams kept and checked for one token
    commit: Commit = "keep"  # an accepted path's memory stays, or is decoded once more as a chain


OPTIONS = Options
SPACE = {
    "gamma": Span(low=4, high=60, log=True),
    "window": Span(low=3, high=20),
    "ngram": Span(low=3, high=6),
    "guesses": Span(low=3, high=20),
}


def _preset(window: int, ngram: int, guesses: int, source: str = SMALL_MODEL_STUDY) -> Preset:
    values = {"window": window, "ngram": ngram, "guesses": guesses}
    return Preset(gamma=guesses * (ngram - 1), values=values, source=source)


PRESETS = {
    "qwen2.5-1.5b": _preset(20, 4, 20),
    "smollm2": _preset(20, 4, 20),
    "llama-3.2-1b": _preset(10, 6, 10),
    "vicuna-7b": _preset(7, 5, 7),
    "llama.cpp": _preset(15, 5, 15, "llama.cpp's example, its default"),
}


def target_options(options: SessionOptions, spec: DrafterSpec, gamma: int, rollback: str) -> SessionOptions:
    """Room for the candidates and the window.

    Raises: UnsupportedError for targets whose memory cannot hold a tree.
    """
    own = read_options(spec, Options, PRESETS)
    if rollback != "trim":
        raise UnsupportedError(
            f"Lookahead decoding needs a target with attention memory only: its window is a tree. This one is rolled "
            f"back by {rollback!r}.",
            hint="Prompt lookup (pld) and REST draft chains for such targets.",
        )
    n_riders = own.window * (own.ngram - 1) - 1
    n_leaves = min(gamma, own.guesses) + own.window
    return tree_options(options, n_rows=gamma + n_riders, n_leaves=n_leaves, commit=own.commit)


def check_target(spec: DrafterSpec, target_path: Path) -> None:
    """Refuse targets with recurrent memory. Raises: UnsupportedError, ModelFileError."""
    check_holds_trees("lookahead", target_path)


def make(bench: DrafterBench) -> Lookahead:
    """Lookahead decoding with the options of the spec."""
    return Lookahead(read_options(bench.spec, Options, PRESETS), bench.clock, n_candidates=bench.gamma)


class Lookahead:
    """Window and pool of one generation."""

    name = "lookahead"
    rollback_name: str | None = None
    failed_native_calls = 0

    def __init__(self, options: Options, clock: Clock, *, n_candidates: int) -> None:
        self._options, self._clock, self._n_candidates = options, clock, n_candidates
        self._levels: list[list[int]] = []  # level 0 first; its first token is the newest committed one
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}
        self._last = 0
        self._ends: tuple[int, ...] = ()
        self._tally = ProposalTally()
        self._n_candidate_rows = self._n_window_rows = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """An empty pool, and a window of tokens drawn from the prompt."""
        shape = (self._options.ngram - 1, self._options.window)
        self._levels = rng.choice(np.asarray(prompt), shape).tolist()
        self._pool = {}
        self._ends = ()
        self._tally = ProposalTally()
        self._n_candidate_rows = self._n_window_rows = 0

    def propose(self, k: int) -> Draft:
        """The pool's n-grams after the newest token, and the window."""
        started_ns = self._clock.now_ns()
        if self._ends:
            self._learn()
        self._levels[0][0] = self._last
        known = reversed(self._pool.get(self._last, {}))  # the newest first
        candidates = merge(known, self._n_candidates, min(k, self._options.ngram - 1))
        tree = self._with_window(candidates)
        self._n_candidate_rows += tree.n_candidates
        self._n_window_rows += tree.n_riders
        self._tally.add(bool(candidates.tokens), self._clock.now_ns() - started_ns)
        return Draft(tree=tree)

    def _learn(self) -> None:
        """Each column and the target's token after it is an n-gram; then the window moves up by one level."""
        for column, end in enumerate(self._ends):
            first, *rest = (level[column] for level in self._levels)
            known = self._pool.setdefault(first, {})
            ngram = (*rest, end)
            known.pop(ngram, None)
            known[ngram] = None
            if len(known) > self._options.guesses:
                del known[next(iter(known))]
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
        n_riders = len(tokens) - len(candidates.tokens)
        return Tree(tokens=tuple(tokens), parents=tuple(parents), n_riders=n_riders)

    def observe(self, outcome: Outcome) -> None:
        """Keep what the pass said of the window; the next proposal learns from it."""
        self._ends = outcome.riders
        if outcome.committed:
            self._last = outcome.committed[-1]

    def stats(self) -> dict[str, float]:
        """Rounds with and without candidates, rows of both branches, n-grams in the pool."""
        return {
            **self._tally.stats(),
            "candidate_rows": float(self._n_candidate_rows),
            "window_rows": float(self._n_window_rows),
            "pool_ngrams": float(sum(map(len, self._pool.values()))),
        }

    def close(self) -> None:
        """Nothing to free."""

"""Drafting trees with an EAGLE-3 head: EAGLE-2's policy over the head's probabilities.

A level of the tree costs one pass of the head, whatever its width; a node reads the head's own row of its parent. The
target needs attention memory only, as for every tree; `eagle3` drafts chains for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.drafters.chain import Chain
from mlsd.drafters.draft_tree import PRESETS as PAPER
from mlsd.drafters.expansion import expand
from mlsd.drafters.heads import eagle3
from mlsd.drafters.heads.eagle3 import ARCHITECTURE, Eagle3Draft
from mlsd.drafters.heads.head_files import open_head, row_options
from mlsd.drafters.options import Span, read_options
from mlsd.drafters.trees import Commit, check_holds_trees, tree_options
from mlsd.engine.drafter import Draft
from mlsd.engine.llama.heads import EagleHead
from mlsd.engine.llama.rows import LayerRowsSession
from mlsd.engine.session import Logits, SessionOptions
from mlsd.errors import UnsupportedError
from mlsd.records import DrafterSpec, Record


class Options(Record, frozen=True, kw_only=True):
    """Options of tree drafting with a head."""

    depth: Annotated[int, Meta(ge=1, le=16)] = 5  # levels, each a pass of the head
    top_k: Annotated[int, Meta(ge=1, le=64)] = 10  # nodes expanded on a level, and children of each
    commit: Commit = "keep"  # an accepted path's memory stays, or is decoded once more as a chain


READS_TARGET = True
OPTIONS = Options
SPACE = {"gamma": Span(low=4, high=60, log=True), "depth": Span(low=1, high=8), "top_k": Span(low=1, high=16)}
PRESETS = PAPER  # of EAGLE-2 heads, whose policy this is


def target_options(options: SessionOptions, spec: DrafterSpec, gamma: int, rollback: str) -> SessionOptions:
    """Room for a tree of gamma nodes, and rows for the head.

    Raises: UnsupportedError for targets whose memory cannot hold a tree.
    """
    own = read_options(spec, Options, PRESETS)
    if rollback != "trim":
        raise UnsupportedError(
            f"eagle3-tree needs a target with attention memory only; this one is rolled back by {rollback!r}.",
            hint="Use --drafter eagle3: it drafts chains.",
        )
    wide = tree_options(options, n_rows=gamma, n_leaves=gamma, commit=own.commit)
    return row_options(wide, spec, gamma, rollback)


def check_target(spec: DrafterSpec, target_path: Path) -> None:
    """Refuse targets with recurrent memory or without rows. Raises: InputError, UnsupportedError, ModelFileError."""
    eagle3.check_target(spec, target_path)
    check_holds_trees("eagle3-tree", target_path)


check_draft = eagle3.check_draft


def make(bench: DrafterBench) -> Eagle3Tree:
    """The head beside the target.

    Raises: InputError without a head, UnsupportedError for one that does not fit, VocabularyError.
    """
    own = read_options(bench.spec, Options, PRESETS)
    opened = open_head(bench, ARCHITECTURE)
    head = EagleHead(opened.model, opened.target, widest_level=own.top_k)
    return Eagle3Tree(opened.target, head, bench.clock, options=own, n_nodes=bench.gamma)


class Eagle3Tree(Eagle3Draft):
    """Trees from the head."""

    name = "eagle3-tree"

    def __init__(
        self,
        target: LayerRowsSession,
        head: EagleHead,
        clock: Clock,
        *,
        options: Options,
        n_nodes: int,
    ) -> None:
        # A tree is not drawn: its nodes are the likeliest, and the target's own draws choose among them.
        super().__init__(target, head, clock, Chain(clock))
        self._options, self._n_nodes = options, n_nodes
        self._n_rows = self._draft_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """See `HeadChain`."""
        super().begin(prompt, rng)
        self._n_rows = self._draft_ns = 0

    def propose(self, k: int) -> Draft:
        """The likeliest tree of at most `k` levels."""
        own, now = self._options, self._clock.now_ns
        t0 = now()
        self._catch_up()
        first = self._eagle.logits()[0].copy()  # the levels' passes write over it
        tree = expand(first, self._grow, depth=min(k, own.depth), top_k=own.top_k, n_nodes=self._n_nodes)
        t1 = now()
        self._draft_ns += t1 - t0
        self._eagle.truncate(self._eagle.n_past)  # the levels; their accepted tokens come back with true rows
        return Draft(tree=tree, mark_ns=now() - t1)

    def _grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        started_ns = self._clock.now_ns()
        rows = self._eagle.grow(tokens, parents)
        self._forward_ns += self._clock.now_ns() - started_ns
        self._n_steps += 1
        self._n_rows += len(tokens)
        return rows

    def stats(self) -> dict[str, float]:
        """Passes of the head, rows of the levels, and the time left to the policy."""
        stats = super().stats()
        tree_ns = self._draft_ns - stats["draft_forward_ns"]
        return {**stats, "draft_rows": float(self._n_rows), "tree_ns": float(tree_ns)}

"""Drafting a tree with a second model: EAGLE-2's policy over the draft's probabilities.

A level of the tree costs one pass of the draft, whatever its width; the first one also takes in the tokens committed
since the last round. Both models need attention memory only; `draft-model` drafts chains for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import msgspec
import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.drafters.expansion import expand
from mlsd.drafters.options import SMALL_MODEL_STUDY, Preset, Span, read_options
from mlsd.drafters.trees import Commit, check_holds_trees, tree_options
from mlsd.engine.drafter import Draft, Outcome
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.trees import LlamaTreeSession
from mlsd.engine.session import Logits, SessionOptions
from mlsd.engine.vocabulary import check_vocabularies, readable
from mlsd.errors import InputError, UnsupportedError
from mlsd.records import DrafterSpec, Record


class Options(Record, frozen=True, kw_only=True):
    """Options of tree drafting with a model."""

    depth: Annotated[int, Meta(ge=1, le=16)] = 3  # levels, each a pass of the draft
    top_k: Annotated[int, Meta(ge=1, le=64)] = 10  # nodes expanded on a level, and children of each
    commit: Commit = "keep"  # an accepted path's memory stays, or is decoded once more as a chain


OPTIONS = Options
SPACE = {"gamma": Span(low=4, high=48, log=True), "depth": Span(low=1, high=6), "top_k": Span(low=1, high=16)}


def _preset(gamma: int, depth: int, top_k: int) -> Preset:
    return Preset(gamma=gamma, values={"depth": depth, "top_k": top_k}, source=f"{SMALL_MODEL_STUDY} (EAGLE-2)")


# What seed 004, table 5, found best for EAGLE-2 heads; a draft model's passes cost more, so fewer levels may be better.
PRESETS = {
    "qwen2.5-1.5b": _preset(48, 2, 20),
    "smollm2": _preset(48, 3, 20),
    "llama-3.2-1b": _preset(48, 2, 20),
    "vicuna-7b": _preset(60, 5, 10),
}


def target_options(options: SessionOptions, spec: DrafterSpec, gamma: int, rollback: str) -> SessionOptions:
    """Room for a tree of gamma nodes.

    Raises: UnsupportedError for targets whose memory cannot hold a tree.
    """
    own = read_options(spec, Options, PRESETS)
    if rollback != "trim":
        raise UnsupportedError(
            f"draft-tree needs a target with attention memory only; this one is rolled back by {rollback!r}.",
            hint="Use --drafter draft-model: it drafts chains.",
        )
    return tree_options(options, n_rows=gamma, n_leaves=gamma, commit=own.commit)


def check_target(spec: DrafterSpec, target_path: Path) -> None:
    """Refuse targets with recurrent memory. Raises: UnsupportedError, ModelFileError."""
    check_holds_trees("draft-tree", target_path)


def make(bench: DrafterBench) -> DraftTree:
    """Open the draft beside the target.

    Raises: InputError without a draft, VocabularyError when the two do not fit, UnsupportedError for a recurrent draft.
    """
    if bench.draft_path is None:
        raise InputError("The draft-tree method needs a draft.", hint="Name one with --draft.")
    own = read_options(bench.spec, Options, PRESETS)
    n_rows = own.depth * own.top_k
    options = tree_options(bench.options, n_rows=n_rows, n_leaves=2 * own.top_k, commit="keep")
    options = msgspec.structs.replace(options, n_snapshots=0)
    session = cast(LlamaTreeSession, open_session(bench.open_model(bench.draft_path), options))
    try:
        check_vocabularies(bench.target, session)
        n_vocab = min(bench.target.vocabulary.n_tokens, session.vocabulary.n_tokens)
        return DraftTree(session, own, bench.clock, n_nodes=bench.gamma, n_vocab=n_vocab)
    except BaseException:
        session.close()
        raise


class DraftTree:
    """Trees from a draft session."""

    name = "draft-tree"
    rollback_name: str | None = "trim"

    def __init__(
        self, session: LlamaTreeSession, options: Options, clock: Clock, *, n_nodes: int, n_vocab: int
    ) -> None:
        self._session, self._options, self._clock = session, options, clock
        self._n_nodes, self._n_vocab = n_nodes, n_vocab
        self._context: list[int] = []
        self._n_passes = self._n_rows = self._n_catch_up = self._pass_ns = self._draft_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Decode the prompt."""
        self._context = readable(prompt, self._session)
        self._n_passes = self._n_rows = self._n_catch_up = self._pass_ns = self._draft_ns = 0
        self._session.clear()
        self._session.decode(self._context, n_outputs=0)

    def propose(self, k: int) -> Draft:
        """The likeliest tree of at most `k` levels."""
        now, session, own = self._clock.now_ns, self._session, self._options
        t0 = now()
        pending = self._context[session.n_past :]
        session.decode(pending)
        first = session.logits()[0, : self._n_vocab]
        t1 = now()
        self._n_passes += 1
        self._n_catch_up += len(pending)
        self._pass_ns += t1 - t0
        tree = expand(first, self._grow, depth=min(k, own.depth), top_k=own.top_k, n_nodes=self._n_nodes)
        t2 = now()
        session.truncate(session.n_past)  # the levels; what is accepted of them comes back with the next catch-up
        self._draft_ns += t2 - t0
        return Draft(tree=tree, mark_ns=now() - t2)

    def _grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        started_ns = self._clock.now_ns()
        rows = self._session.grow(tokens, parents)
        self._n_passes += 1
        self._n_rows += len(tokens)
        self._pass_ns += self._clock.now_ns() - started_ns
        return rows[:, : self._n_vocab]

    def observe(self, outcome: Outcome) -> None:
        """The committed tokens wait for the next catch-up."""
        self._context.extend(readable(outcome.committed, self._session))

    def stats(self) -> dict[str, float]:
        """Passes and rows of the draft, and its time split into passes and the policy."""
        return {
            "draft_steps": float(self._n_passes),
            "draft_rows": float(self._n_rows),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(self._pass_ns),
            "tree_ns": float(self._draft_ns - self._pass_ns),
        }

    @property
    def failed_native_calls(self) -> int:
        """Always 0: a tree session refuses to go on after a failure."""
        return self._session.failed_native_calls

    def close(self) -> None:
        """Free the draft's context."""
        self._session.close()

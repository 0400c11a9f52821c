"""EAGLE-2's policy over a draft model's probabilities: a level of the tree costs one pass, whatever its width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, cast

import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters.method import DrafterSetup, Method
from mlsd.drafters.options import Preset, Range, small_model_study
from mlsd.drafters.recipe import Context, Opening
from mlsd.drafters.trees import Commit, Prune, Pruner, TopK, expand, pruner, tree_options, whole_tree
from mlsd.engine.drafter import Draft, Drafter, Outcome
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.trees import LlamaTreeSession
from mlsd.engine.session import Logits
from mlsd.engine.vocabulary import check_vocabularies, readable
from mlsd.records import Record


class Options(Record, frozen=True, kw_only=True):
    """Options of tree drafting with a model."""

    depth: Annotated[int, Meta(ge=1, le=16, description="levels, each a pass of the draft")] = 3
    top_k: TopK = 10
    commit: Commit = "keep"
    prune: Prune = False


class DraftTree(Drafter):
    """Trees from a draft session."""

    rollback_name = "trim"

    def __init__(
        self,
        session: LlamaTreeSession,
        options: Options,
        clock: Clock,
        *,
        n_nodes: int,
        n_vocab: int,
        prune: Pruner | None = None,
    ) -> None:
        self._session, self._options, self._clock = session, options, clock
        self._n_nodes, self._n_vocab, self._prune = n_nodes, n_vocab, prune
        self._context: list[int] = []
        self._n_passes = self._n_rows = self._n_catch_up = self._pass_ns = self._draft_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Decode the prompt."""
        self._context = readable(prompt, self._session.tokenizer)
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
        prune = self._prune
        keep = None if prune is None else lambda log_p: prune(log_p, now() - t0)
        tree = expand(first, self._grow, depth=min(k, own.depth), top_k=own.top_k, n_nodes=self._n_nodes, keep=keep)
        t2 = now()
        session.truncate(session.n_past)  # the levels; what is accepted of them comes back with the next catch-up
        self._draft_ns += t2 - t0
        return Draft(tree=tree if tree.tokens else None, mark_ns=now() - t2)

    def _grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        started_ns = self._clock.now_ns()
        rows = self._session.grow(tokens, parents)
        self._n_passes += 1
        self._n_rows += len(tokens)
        self._pass_ns += self._clock.now_ns() - started_ns
        return rows[:, : self._n_vocab]

    def observe(self, outcome: Outcome) -> None:
        self._context.extend(readable(outcome.committed, self._session.tokenizer))

    def stats(self) -> dict[str, float]:
        """Passes and rows of the draft, and its time split into passes and the policy."""
        return {
            "draft_steps": float(self._n_passes),
            "draft_rows": float(self._n_rows),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(self._pass_ns),
            "tree_ns": float(self._draft_ns - self._pass_ns),
        }

    def close(self) -> None:
        self._session.close()


def _open(setup: DrafterSetup, own: Options) -> DraftTree:
    session = cast(LlamaTreeSession, open_session(setup.open_model(setup.second), setup.draft.options))
    try:
        check_vocabularies(setup.target.tokenizer, session.tokenizer)
        n_vocab = min(setup.target.tokenizer.vocabulary.n_tokens, session.tokenizer.vocabulary.n_tokens)
        prune = pruner(own.prune, setup.target, setup.opening.gamma, setup.clock)
        return DraftTree(session, own, setup.clock, n_nodes=setup.opening.gamma, n_vocab=n_vocab, prune=prune)
    except BaseException:
        session.close()
        raise


def _contexts(opening: Opening, own: Options) -> tuple[Context, ...]:
    levels = tree_options(opening.options, n_rows=own.depth * own.top_k, n_leaves=2 * own.top_k, commit="keep")
    return opening.with_draft(Context(whose="draft", options=levels), whole_tree(opening, own.commit))


def _preset(name: str, gamma: int, depth: int, top_k: int) -> Preset:
    return small_model_study(name, gamma, method="EAGLE-2", depth=depth, top_k=top_k)


# Found best for EAGLE-2 heads; a draft model's passes cost more, so fewer levels may be better.
EAGLE_2 = (
    _preset("qwen2.5-1.5b", 48, 2, 20),
    _preset("smollm2", 48, 3, 20),
    _preset("llama-3.2-1b", 48, 2, 20),
    _preset("vicuna-7b", 60, 5, 10),
)

METHOD = Method(
    name="draft-tree",
    summary="Drafting a tree with a second model: EAGLE-2's policy over the draft's probabilities.",
    source="Li et al. 2024, EAGLE-2 (arXiv 2406.16858); pruning as in EVICT 2026 (arXiv 2605.00342)",
    options=Options,
    open=_open,
    presets=EAGLE_2,
    space={
        "gamma": Range(low=4, high=48),
        "depth": Range(low=1, high=6),
        "top_k": Range(low=1, high=16),
    },
    needs="draft",
    chains_instead="Use --drafter draft-model: it drafts chains.",
    contexts=_contexts,
)

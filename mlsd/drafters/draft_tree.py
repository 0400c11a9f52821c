"""EAGLE-2's policy over a draft model's probabilities: a level of the tree costs one pass, whatever its width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mlsd.drafters.draft_model import DraftModel, open_second
from mlsd.drafters.method import DrafterSetup, Method
from mlsd.drafters.options import Preset, Range, small_model_study
from mlsd.drafters.recipe import Context, Opening
from mlsd.drafters.trees import Policy, TreeOptions, tree_options, whole_tree
from mlsd.engine.drafter import Draft
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.llama.trees import LlamaTreeSession
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import Logits
from mlsd.engine.vocabulary import check_vocabularies


class DraftTree(DraftModel):
    """Trees from a draft session."""

    def __init__(self, session: LlamaTreeSession, setup: DrafterSetup, policy: Policy) -> None:
        super().__init__(session, make_rollback("trim", session), setup.clock)
        self._levels, self._policy = session, policy
        sides = (setup.target.tokenizer, session.tokenizer)
        self._n_vocab = min(side.vocabulary.n_tokens for side in sides)

    def _forget(self) -> None:
        super()._forget()
        self._n_rows = self._draft_ns = 0

    def propose(self, k: int) -> Draft:
        """The likeliest tree of at most `k` levels."""
        now, session = self._clock.now_ns, self._session
        t0 = now()
        pending = self._context[session.n_past :]
        self._forward(pending)
        self._n_catch_up += len(pending)
        tree = self._policy.tree(session.logits()[0, : self._n_vocab], self._grow, k, t0)
        t1 = now()
        session.truncate(session.n_past)  # the levels; what is accepted of them comes back with the next catch-up
        self._draft_ns += t1 - t0
        return Draft(tree=tree, mark_ns=now() - t1)

    def _grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        started_ns = self._clock.now_ns()
        rows = self._levels.grow(tokens, parents)
        self._n_steps += 1
        self._n_rows += len(tokens)
        self._forward_ns += self._clock.now_ns() - started_ns
        return rows[:, : self._n_vocab]

    def stats(self) -> dict[str, float]:
        """Passes and rows of the draft, and its time split into passes and the policy."""
        return {
            "draft_steps": float(self._n_steps),
            "draft_rows": float(self._n_rows),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(self._forward_ns),
            "tree_ns": float(self._draft_ns - self._forward_ns),
        }


def _open(setup: DrafterSetup, own: TreeOptions) -> DraftTree:
    def growing(session: LlamaSession) -> DraftTree:
        check_vocabularies(setup.target.tokenizer, session.tokenizer)
        return DraftTree(cast(LlamaTreeSession, session), setup, Policy(own, setup))

    return open_second(setup, setup.draft, growing)


def _contexts(opening: Opening, own: TreeOptions) -> tuple[Context, ...]:
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
    options=TreeOptions,
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

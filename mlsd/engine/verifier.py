"""The target's side of a round: one pass over a draft, the acceptance rule, and the memory afterwards.

The loop calls the steps in order and times them; a chain and a tree differ only here.
"""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np

from mlsd.engine.drafter import Draft
from mlsd.engine.rollback import Rollback
from mlsd.engine.session import Session, TreeSession
from mlsd.engine.tree import Tree
from mlsd.engine.verify import Acceptance, accept_greedy, accept_sampled, accept_tree, draw, probabilities
from mlsd.records import Record, Sampling


class Verified(Record, frozen=True, kw_only=True):
    """What the target makes of a draft."""

    tokens: tuple[int, ...]  # accepted, in order
    bonus: int
    riders: tuple[int, ...] = ()  # greedy tokens after the leaves among a tree's riders


class Verifier(Protocol):
    """One kind of draft on one session."""

    def mark(self, draft: Draft) -> None:
        """Remember the memory before speculative tokens go in."""

    def run(self, last: int, draft: Draft) -> None:
        """The target pass over the newest committed token and the draft."""

    def accept(self, draft: Draft) -> Verified:
        """Read the outputs and decide."""

    def keep(self, draft: Draft) -> int:
        """Forget what was rejected; returns the positions decoded again."""


class ChainVerifier:
    """A single continuation, rolled back by any strategy. An empty draft is plain decoding."""

    def __init__(self, session: Session, rollback: Rollback, sampling: Sampling, rng: np.random.Generator) -> None:
        self._session, self._rollback, self._sampling, self._rng = session, rollback, sampling, rng
        self._n_past = self._last = 0
        self._accepted: tuple[int, ...] = ()

    def mark(self, draft: Draft) -> None:
        """See `Verifier`."""
        if draft.tokens:
            self._rollback.mark()

    def run(self, last: int, draft: Draft) -> None:
        """See `Verifier`."""
        self._n_past, self._last = self._session.n_past, last
        self._session.decode((last, *draft.tokens), n_outputs=1 + len(draft.tokens))

    def accept(self, draft: Draft) -> Verified:
        """See `Verifier`."""
        acceptance = self._rule(draft)
        self._accepted = draft.tokens[: acceptance.accepted]
        return Verified(tokens=self._accepted, bonus=acceptance.bonus)

    def _rule(self, draft: Draft) -> Acceptance:
        if self._sampling.greedy:
            return accept_greedy(draft.tokens, self._session.greedy())
        target = probabilities(self._session.logits(), self._sampling)
        return accept_sampled(draft.tokens, draft.probabilities, target, self._rng)

    def keep(self, draft: Draft) -> int:
        """See `Verifier`."""
        accepted = self._accepted
        if len(accepted) == len(draft.tokens):
            return 0
        return self._rollback.rewind(self._n_past + 1 + len(accepted), (self._last, *accepted))


class TreeVerifier:
    """Continuations that branch; the session must be a `session.TreeSession`."""

    def __init__(self, session: Session, sampling: Sampling, rng: np.random.Generator) -> None:
        self._session, self._sampling, self._rng = cast(TreeSession, session), sampling, rng
        self._path: tuple[int, ...] = ()

    def mark(self, draft: Draft) -> None:
        """Attention memory needs no mark."""

    def run(self, last: int, draft: Draft) -> None:
        """See `Verifier`."""
        self._session.decode_tree(last, _tree(draft))

    def accept(self, draft: Draft) -> Verified:
        """See `Verifier`."""
        tree = _tree(draft)
        acceptance = accept_tree(tree, self._greedy if self._sampling.greedy else self._sampled)
        self._path = acceptance.path
        parents = set(tree.parents)
        ends = (node for node in range(tree.n_candidates, len(tree.tokens)) if node not in parents)
        return Verified(
            tokens=tuple(tree.tokens[node] for node in acceptance.path),
            bonus=acceptance.bonus,
            riders=tuple(self._greedy(node) for node in ends),
        )

    def _greedy(self, node: int) -> int:
        return int(self._session.row(node).argmax())

    def _sampled(self, node: int) -> int:
        return draw(probabilities(self._session.row(node)[None], self._sampling)[0], self._rng)

    def keep(self, draft: Draft) -> int:
        """See `Verifier`."""
        return self._session.keep_path(self._path)


def _tree(draft: Draft) -> Tree:
    assert draft.tree is not None
    return draft.tree

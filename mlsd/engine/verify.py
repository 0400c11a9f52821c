"""Verification: acceptance rules, pure functions of proposals and target outputs, and the target's side of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from mlsd.engine.drafter import Draft
from mlsd.engine.rollback import Rollback
from mlsd.engine.session import Session, TreeSession
from mlsd.engine.tree import ROOT, Tree
from mlsd.records import Record, Sampling

Probabilities = npt.NDArray[np.float64]


class Accepted(Record, frozen=True, kw_only=True):
    """Result of one verification: how many proposals stand, and the token the target adds itself."""

    accepted: int
    bonus: int
    path: tuple[int, ...] = ()  # accepted nodes of a tree, in order


def accept_tree(tree: Tree, pick: Callable[[int], int]) -> Accepted:
    """Follow the target's own choice down the tree until no candidate carries it.

    `pick(node)` is the target's token after `node`: the greedy one, or a draw from the target's distribution. It is
    asked once a node, and only on the way. With draws the committed tokens follow that distribution exactly, whatever
    the tree: each is a fresh draw, and the tree only decides how many are had in one pass.
    """
    node = ROOT
    path: list[int] = []
    while True:
        token = pick(node)
        child = tree.child(node, token)
        if child is None:
            return Accepted(accepted=len(path), bonus=token, path=tuple(path))
        path.append(child)
        node = child


def accept_greedy(proposed: Sequence[int], target: Sequence[int]) -> Accepted:
    """Keep proposals while they equal `target`, the target's greedy tokens (one entry more than `proposed`)."""
    for i, token in enumerate(proposed):
        if token != target[i]:
            return Accepted(accepted=i, bonus=target[i])
    return Accepted(accepted=len(proposed), bonus=target[len(proposed)])


def probabilities(logits: npt.NDArray[np.float32], sampling: Sampling) -> Probabilities:
    """Distributions after temperature, top-k and top-p (in this order): rows of `logits`, shape (n, n_vocab).

    Top-k keeps the k largest (ties at the border stay); top-p keeps the smallest set of most likely tokens whose
    probability reaches p. Double precision, so that rejection sampling divides honest numbers.
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    if 0 < sampling.top_k < scaled.shape[1]:
        border = np.partition(scaled, -sampling.top_k, axis=1)[:, -sampling.top_k, None]
        scaled = np.where(scaled < border, -np.inf, scaled)
    scaled -= scaled.max(axis=1, keepdims=True)
    weights = np.exp(scaled)
    result: Probabilities = weights / weights.sum(axis=1, keepdims=True)
    if sampling.top_p < 1.0:
        order = np.argsort(-result, axis=1, kind="stable")
        ordered = np.take_along_axis(result, order, axis=1)
        # A token stays while the mass before it has not reached p; the first always stays.
        ordered[np.cumsum(ordered, axis=1) - ordered >= sampling.top_p] = 0.0
        np.put_along_axis(result, order, ordered, axis=1)
        result /= result.sum(axis=1, keepdims=True)
    return result


def draw(distribution: Probabilities, rng: np.random.Generator) -> int:
    """One token from a distribution over the vocabulary, shape (n_vocab,)."""
    cumulated = np.cumsum(distribution)
    return int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right"))


def accept_sampled(
    proposed: Sequence[int],
    draft: Probabilities | None,
    target: Probabilities,
    rng: np.random.Generator,
) -> Accepted:
    """Modified rejection sampling: the committed tokens follow the target's distribution exactly.

    `target` has shape (n_proposed + 1, n_vocab), `draft` (n_proposed, n_shared), the distributions each proposal was
    drawn from; tokens that a draft's smaller vocabulary lacks have probability zero there, and of tokens that the
    target lacks none may be proposed. `draft` None means deterministic proposals (probability one each): a proposal x
    then stands with probability p(x), and on rejection the rest of p without x is drawn from.

    Accept x with probability min(1, p(x)/q(x)); on the first rejection draw from norm(max(p - q, 0)).
    Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """
    for i, token in enumerate(proposed):
        p = target[i]
        q_of_token = 1.0 if draft is None else draft[i, token]
        if rng.random() * q_of_token < p[token]:
            continue
        residual = p.copy()
        if draft is None:
            residual[token] = 0.0
        else:
            n_shared = draft.shape[1]
            residual[:n_shared] = np.maximum(p[:n_shared] - draft[i], 0.0)
        return Accepted(accepted=i, bonus=draw(residual, rng))
    return Accepted(accepted=len(proposed), bonus=draw(target[len(proposed)], rng))


class Verified(Record, frozen=True, kw_only=True):
    """What the target makes of a draft."""

    tokens: tuple[int, ...]  # accepted, in order
    bonus: int
    riders: tuple[int, ...] = ()  # greedy tokens after the leaves among a tree's riders


class ChainVerifier:
    """A single continuation, rolled back by any strategy. An empty draft is plain decoding."""

    def __init__(self, session: Session, rollback: Rollback, sampling: Sampling, rng: np.random.Generator) -> None:
        self._session, self._rollback, self._sampling, self._rng = session, rollback, sampling, rng
        self._n_past = self._last = 0
        self._accepted: tuple[int, ...] = ()

    def mark(self, draft: Draft) -> None:
        if draft.tokens:
            self._rollback.mark()

    def run(self, last: int, draft: Draft) -> None:
        self._n_past, self._last = self._session.n_past, last
        self._session.decode((last, *draft.tokens), n_outputs=1 + len(draft.tokens))

    def accept(self, draft: Draft) -> Verified:
        acceptance = self._rule(draft)
        self._accepted = draft.tokens[: acceptance.accepted]
        return Verified(tokens=self._accepted, bonus=acceptance.bonus)

    def _rule(self, draft: Draft) -> Accepted:
        if self._sampling.greedy:
            return accept_greedy(draft.tokens, self._session.greedy())
        target = probabilities(self._session.logits(), self._sampling)
        return accept_sampled(draft.tokens, draft.probabilities, target, self._rng)

    def keep(self, draft: Draft) -> int:
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
        self._session.decode_tree(last, _tree(draft))

    def accept(self, draft: Draft) -> Verified:
        """The path of the target's own choices, and what it says after the riders."""
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
        return self._session.keep_path(self._path)


def _tree(draft: Draft) -> Tree:
    assert draft.tree is not None
    return draft.tree

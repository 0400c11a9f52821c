"""Acceptance rules: pure functions from proposals and target outputs to what is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mlsd.engine.tree import ROOT, Tree
from mlsd.records import Record, Sampling

Probabilities = npt.NDArray[np.float64]


class Acceptance(Record, frozen=True, kw_only=True):
    """Result of one verification: how many proposals stand, and the token the target adds itself."""

    accepted: int
    bonus: int
    path: tuple[int, ...] = ()  # accepted nodes of a tree, in order


def accept_tree(tree: Tree, pick: Callable[[int], int]) -> Acceptance:
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
            return Acceptance(accepted=len(path), bonus=token, path=tuple(path))
        path.append(child)
        node = child


def accept_greedy(proposed: Sequence[int], target: Sequence[int]) -> Acceptance:
    """Keep proposals while they equal the target's own greedy tokens.

    `target[i]` is the target's token after proposals 0..i-1, so it has one entry more than `proposed`.
    """
    for i, token in enumerate(proposed):
        if token != target[i]:
            return Acceptance(accepted=i, bonus=target[i])
    return Acceptance(accepted=len(proposed), bonus=target[len(proposed)])


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
) -> Acceptance:
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
        return Acceptance(accepted=i, bonus=draw(residual, rng))
    return Acceptance(accepted=len(proposed), bonus=draw(target[len(proposed)], rng))

"""What is proposed, and what the target makes of it: acceptance rules as pure functions of proposals and outputs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mlsd.engine.context import Logits
from mlsd.engine.tree import ROOT, Tree
from mlsd.records import Record, Sampling

Probabilities = npt.NDArray[np.float64]


class Proposal(Record, frozen=True, kw_only=True):
    """What a drafter proposes for one round."""

    tokens: tuple[int, ...] = ()
    # Distributions the tokens were drawn from, shape (len(tokens), n_vocab); None: the tokens are deterministic.
    probabilities: Probabilities | None = None
    tree: Tree | None = None  # continuations that branch, in place of `tokens`; deterministic
    rollback_ns: int = 0  # time inside propose spent on saving state; counted as rollback, not as drafting

    @property
    def n_proposed(self) -> int:
        return len(self.tokens) if self.tree is None else self.tree.n_candidates


NOTHING = Proposal()


class Verification(Record, frozen=True, kw_only=True):
    """What became of a proposal: `committed` are the accepted tokens and the bonus token, in order."""

    accepted: int
    committed: tuple[int, ...]
    path: tuple[int, ...] = ()  # accepted nodes of a tree, in order
    window: tuple[int, ...] = ()  # the target's greedy tokens after the ends of a tree's window


class Outputs(Protocol):
    """What a pass gives out: a context behind it, or what was saved of one."""

    def greedy(self) -> list[int]:
        """The likeliest token behind each output row."""

    def logits(self) -> Logits:
        """The output rows, shape (n_outputs, n_vocab)."""

    def row(self, node: int) -> Logits:
        """Logits behind a node of the tree that was verified, shape (n_vocab,)."""


Accept = Callable[[Proposal, Outputs], Verification]  # what stands, by the outputs of the pass that verified it


def acceptance_rule(sampling: Sampling, rng: np.random.Generator) -> Accept:
    """The rule under which the output is what the target alone would write. An empty proposal is plain decoding."""
    return _accept_greedy if sampling.greedy else partial(_accept_drawn, sampling=sampling, rng=rng)


def _accept_greedy(proposal: Proposal, outputs: Outputs) -> Verification:
    if proposal.tree is None:
        return accept_greedy(proposal.tokens, outputs.greedy())
    return accept_tree(proposal.tree, lambda node: int(outputs.row(node).argmax()))


def _accept_drawn(
    proposal: Proposal, outputs: Outputs, *, sampling: Sampling, rng: np.random.Generator
) -> Verification:
    if proposal.tree is None:
        target = probabilities(outputs.logits(), sampling)
        return accept_sampled(proposal.tokens, proposal.probabilities, target, rng)
    return accept_tree(
        proposal.tree,
        lambda node: draw(probabilities(outputs.row(node)[None], sampling)[0], rng),
        lambda node: int(outputs.row(node).argmax()),
    )


def accept_tree(
    tree: Tree, pick: Callable[[int], int], after_window: Callable[[int], int] | None = None
) -> Verification:
    """Follow the target's own choice down the tree until no candidate carries it.

    `pick(node)` is the target's token after `node`: the greedy one, or a draw from the target's distribution. It is
    asked once a node, and only on the way. With draws the committed tokens follow that distribution exactly, whatever
    the tree: each is a fresh draw, and the tree only decides how many are had in one pass. `after_window` gives what
    the ends of a window are asked for, where that is not what is picked.
    """
    path: list[int] = []
    committed = [pick(ROOT)]
    while (child := tree.child(path[-1] if path else ROOT, committed[-1])) is not None:
        path.append(child)
        committed.append(pick(child))
    ends = set(range(tree.n_candidates, len(tree.tokens))).difference(tree.parents)
    return Verification(
        accepted=len(path),
        committed=tuple(committed),
        path=tuple(path),
        window=tuple(map(after_window or pick, sorted(ends))),
    )


def accept_greedy(proposed: Sequence[int], target: Sequence[int]) -> Verification:
    """Keep proposals while they equal `target`, the target's greedy tokens (one entry more than `proposed`)."""
    for i, token in enumerate(proposed):
        if token != target[i]:
            return Verification(accepted=i, committed=(*proposed[:i], target[i]))
    return Verification(accepted=len(proposed), committed=(*proposed, target[len(proposed)]))


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
) -> Verification:
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
        return Verification(accepted=i, committed=(*proposed[:i], draw(residual, rng)))
    return Verification(accepted=len(proposed), committed=(*proposed, draw(target[len(proposed)], rng)))

"""EAGLE-2's policy: grow a draft tree where its paths are likely, then keep the likeliest nodes of all.

Works over anything that gives logits level by level: a draft model here, a trained head as well.
Source: Li et al. 2024, EAGLE-2 (arXiv 2406.16858), section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mlsd.engine.session import Logits
from mlsd.engine.tree import ROOT, Tree, depth_first

# Tokens of a level and the place of each one's parent in the level before -> logits after each.
Grow = Callable[[Sequence[int], Sequence[int]], Logits]


def expand(first: Logits, grow: Grow, *, depth: int, top_k: int, n_nodes: int) -> Tree:
    """A tree of at most `n_nodes` nodes and `depth` levels; `first` are the logits after the root, shape (n_vocab,).

    Each level's `top_k` likeliest nodes, by the product of probabilities along their paths, get `top_k` children each.
    A path is never likelier than its beginning, so the likeliest nodes form a tree by themselves.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []  # log-probability of the path

    def add(parent: int, base: float, logits: npt.NDArray[np.float32]) -> range:
        best, log_p = likeliest(logits, top_k)
        start = len(tokens)
        tokens.extend(best.tolist())
        scores.extend((base + log_p).tolist())
        parents.extend([parent] * len(best))
        return range(start, len(tokens))

    level: list[int] = list(add(ROOT, 0.0, first))
    place = {ROOT: ROOT}
    for _ in range(depth - 1):
        frontier = sorted(level, key=lambda i: -scores[i])[:top_k]
        rows = grow([tokens[i] for i in frontier], [place[parents[i]] for i in frontier])
        place = {node: i for i, node in enumerate(frontier)}
        level = [child for node, row in zip(frontier, rows, strict=True) for child in add(node, scores[node], row)]
    # Stable, and parents stand before children: of equal ones the parent is kept.
    best = sorted(range(len(tokens)), key=lambda i: -scores[i])[:n_nodes]
    index = {ROOT: ROOT, **{node: i for i, node in enumerate(best)}}
    return depth_first([tokens[i] for i in best], [index[parents[i]] for i in best])


def likeliest(logits: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The `k` likeliest tokens, likeliest first, and their log-probabilities under the softmax of `logits`."""
    k = min(k, len(logits))
    best = np.argpartition(logits, -k)[-k:]
    best = best[np.argsort(-logits[best], kind="stable")]
    top = logits[best[0]]
    total = np.log(np.exp(logits - top).sum(dtype=np.float64))
    return best, (logits[best] - top).astype(np.float64) - total

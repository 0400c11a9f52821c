"""What methods share that draft trees: the target context they need, and two ways to choose a tree's nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from mlsd.drafters.method import DrafterSetup, MethodOptions
from mlsd.drafters.model_drafter import DraftMemory, ModelDrafter
from mlsd.drafters.options import small_model_study
from mlsd.drafters.recipe import Opening
from mlsd.engine.context import ContextOptions, Logits, padded
from mlsd.engine.tree import ROOT, Tree, depth_first
from mlsd.engine.verify import Proposal

if TYPE_CHECKING:
    from mlsd.engine.llama.heads import EagleHead
    from mlsd.engine.llama.trees import LlamaTreeContext

_DROPPED = -2

# See `engine.context.ContextOptions.tree`.
Commit = Annotated[
    Literal["keep", "redecode"],
    Meta(description="an accepted path's memory stays, or is decoded once more as a chain"),
]


# Found best for EAGLE-2 heads; a draft model's passes cost more, so fewer levels may be better.
EAGLE_2 = tuple(
    small_model_study(name, gamma, method="EAGLE-2", depth=depth, top_k=top_k)
    for name, gamma, depth, top_k in (
        ("qwen2.5-1.5b", 48, 2, 20),
        ("smollm2", 48, 3, 20),
        ("llama-3.2-1b", 48, 2, 20),
        ("vicuna-7b", 60, 5, 10),
    )
)


class TreeOptions(MethodOptions, frozen=True, kw_only=True):
    """Options of tree drafting with a model."""

    depth: Annotated[int, Meta(ge=1, le=16, description="levels, each a pass of the draft")] = 3
    top_k: Annotated[int, Meta(ge=1, le=64, description="nodes expanded on a level, and children of each")] = 10
    commit: Commit = "keep"


def tree_options(options: ContextOptions, *, n_rows: int, n_leaves: int, commit: Commit) -> ContextOptions:
    """A target context for trees of `n_rows` nodes and `n_leaves` leaves; it has room for one tree at its end."""
    return msgspec.structs.replace(
        options,
        tree=commit,
        n_ctx=padded(options.n_ctx + n_rows + 1),
        n_batch=max(options.n_batch, n_rows + 1),
        n_ubatch=max(options.n_ubatch, n_rows + 1),
        n_sequences=max(2, n_leaves),
        max_outputs=n_rows + 1,
        device_sampling=False,
    )


def whole_tree(opening: Opening, commit: Commit) -> ContextOptions:
    """The target's context for trees of gamma nodes, each of which may be a leaf."""
    return tree_options(opening.target, n_rows=opening.case.gamma, n_leaves=opening.case.gamma, commit=commit)


# Tokens of a level and the place of each one's parent in the level before -> logits after each.
Grow = Callable[[Sequence[int], Sequence[int]], Logits]


def expand(first: Logits, grow: Grow, *, depth: int, top_k: int, n_nodes: int) -> Tree:
    """EAGLE-2's tree of at most `n_nodes` nodes and `depth` levels; `first` are the logits after the root: (n_vocab,).

    Grows where paths are likely, then keeps the likeliest nodes of all (Li et al. 2024, arXiv 2406.16858, section 4),
    over anything that gives logits level by level: a draft model as well as a trained head. Each level's `top_k`
    likeliest nodes, by the product of probabilities along their paths, get `top_k` children each. A path is never
    likelier than its beginning, so the likeliest nodes form a tree by themselves.
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
    index_in_level = {ROOT: ROOT}
    for _ in range(depth - 1):
        frontier = sorted(level, key=lambda i: -scores[i])[:top_k]
        rows = grow([tokens[i] for i in frontier], [index_in_level[parents[i]] for i in frontier])
        index_in_level = {node: i for i, node in enumerate(frontier)}
        level = [child for node, row in zip(frontier, rows, strict=True) for child in add(node, scores[node], row)]
    # Stable, and parents stand before children: of equal ones the parent is kept.
    best = sorted(range(len(tokens)), key=lambda i: -scores[i])[:n_nodes]
    index = {ROOT: ROOT, **{node: i for i, node in enumerate(best)}}
    return depth_first([tokens[i] for i in best], [index[parents[i]] for i in best])


class TreeDrafter(ModelDrafter):
    """EAGLE-2's trees of a model that has read the newest text, and what they took.

    A tree is not drawn: with a temperature the target's own draws choose among its nodes, the likeliest.
    """

    def __init__(
        self, memory: DraftMemory, model: LlamaTreeContext | EagleHead, options: TreeOptions, setup: DrafterSetup,
        *, n_vocab: int | None = None,
    ) -> None:  # fmt: skip
        """`model` is the memory's; only tokens below `n_vocab` are proposed."""
        super().__init__(memory)
        self._model, self._options, self._n_vocab = model, options, n_vocab
        self._n_nodes, self._clock = setup.opening.case.gamma, setup.clock
        self._n_rows = self._tree_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._n_rows = self._tree_ns = 0
        super().begin(prompt, rng)

    def propose(self, k: int) -> Proposal:
        """The likeliest tree of at most `k` levels."""
        model, now, options, tally = self._model, self._clock.now_ns, self._options, self.memory.tally

        def grow(tokens: Sequence[int], parents: Sequence[int]) -> Logits:
            started_ns = now()
            rows = model.grow(tokens, parents)
            tally["draft_forward_ns"] += now() - started_ns
            tally["draft_steps"] += 1
            self._n_rows += len(tokens)
            return rows[:, : self._n_vocab]

        self.memory.read(self.memory.news())
        t0, passes_ns = now(), tally["draft_forward_ns"]
        first = model.logits()[0, : self._n_vocab].copy()  # the levels' passes may write over it
        tree = expand(first, grow, depth=min(k, options.depth), top_k=options.top_k, n_nodes=self._n_nodes)
        t1 = now()
        self._tree_ns += t1 - t0 - int(tally["draft_forward_ns"] - passes_ns)
        model.truncate(model.n_past)  # the levels; what is accepted of them comes back with the newest text
        return Proposal(tree=tree, rollback_ns=now() - t1)

    def stats(self) -> dict[str, float]:
        """Passes of catching up and of the levels, the rows of these, and the time left to the policy."""
        return self.memory.tally | {"draft_rows": float(self._n_rows), "tree_ns": float(self._tree_ns)}


def likeliest(logits: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The `k` likeliest tokens, likeliest first, and their log-probabilities under the softmax of `logits`."""
    k = min(k, len(logits))
    best = np.argpartition(logits, -k)[-k:]
    best = best[np.argsort(-logits[best], kind="stable")]
    top = logits[best[0]]
    total = np.log(np.exp(logits - top).sum(dtype=np.float64))
    return best, (logits[best] - top).astype(np.float64) - total


def commonest_prefixes(rows: npt.NDArray[np.int32], n_nodes: int) -> Tree:
    """The `n_nodes` commonest prefixes of `rows` as a tree, commoner children first.

    `rows`, shape (n, length), are sorted; a row ends at its first negative id. A prefix is at least as common as what
    continues it, so the chosen ones form a tree by themselves (He et al. 2023, REST, arXiv 2311.08252, section 3.2,
    which takes the most frequent prefixes of a trie).
    """
    nodes: list[tuple[int, int, int]] = []  # count, token, parent among `nodes`
    group = np.full(len(rows), ROOT)  # each row's node at the depth before
    for depth in range(rows.shape[1]):
        column = rows[:, depth]
        changed = np.ones(len(rows), dtype=bool)
        np.logical_or(column[1:] != column[:-1], group[1:] != group[:-1], out=changed[1:])
        starts = np.flatnonzero(changed)
        sizes = np.diff(starts, append=len(rows))
        chosen = _commonest(np.where(column[starts] >= 0, sizes, 0), n_nodes)
        index = np.full(len(starts), _DROPPED)
        index[chosen] = len(nodes) + np.arange(len(chosen))
        first = starts[chosen]
        nodes += zip(sizes[chosen].tolist(), column[first].tolist(), group[first].tolist(), strict=True)
        group = np.repeat(index, sizes)
        alive = group != _DROPPED
        if not alive.all():
            rows, group = rows[alive], group[alive]
        if not len(rows):
            break
    # The sort is stable and `nodes` has parents first, so a parent comes before children that are as common.
    best = sorted(range(len(nodes)), key=lambda i: -nodes[i][0])[:n_nodes]
    rank = {ROOT: ROOT, **{node: i for i, node in enumerate(best)}}
    return depth_first([nodes[i][1] for i in best], [rank[nodes[i][2]] for i in best])


def _commonest(sizes: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Indices of the `n` largest sizes above 0, in ascending order; of equal ones the earlier."""
    n_positive = int(np.count_nonzero(sizes))
    if n_positive <= n:
        return np.flatnonzero(sizes)
    keys = sizes * len(sizes) - np.arange(len(sizes))
    return np.sort(np.argpartition(keys, -n)[-n:])

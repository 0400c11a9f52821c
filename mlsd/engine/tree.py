"""Draft trees as plain values: several continuations that share their beginnings, verified in one target pass.

Nodes stand in depth-first order with the likeliest child first, so that an accepted first path fills the memory in the
same order as plain decoding would.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlsd.errors import EngineError
from mlsd.records import Record

ROOT = -1  # the newest committed token, which every tree grows from


class Tree(Record, frozen=True, kw_only=True):
    """Nodes and their parents; the last `n_window` nodes are never accepted, the drafter only wants their outputs."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # index of an earlier node, or ROOT
    n_window: int = 0

    @property
    def n_candidates(self) -> int:
        return len(self.tokens) - self.n_window

    def child(self, node: int, token: int) -> int | None:
        for i in range(node + 1, self.n_candidates):
            if self.parents[i] == node and self.tokens[i] == token:
                return i
        return None


@dataclass(frozen=True)
class TreeLayout:
    """Where the nodes of a tree lie. Each leaf is a sequence of its own; a node belongs to the leaves below it."""

    depths: tuple[int, ...]  # 1 for children of the root
    first_leaf: tuple[int, ...]
    end_leaf: tuple[int, ...]  # one past the last
    n_leaves: int


def layout(tree: Tree) -> TreeLayout:
    """Depth and range of leaves of each node. Raises: EngineError when the nodes are not in depth-first order."""
    parents, size = tree.parents, len(tree.tokens)
    depths, last = [0] * size, list(range(size))
    path: list[int] = []  # the node before and all above it
    for i, parent in enumerate(parents):
        while path and path[-1] != parent:
            path.pop()
        if not path and parent != ROOT:
            raise EngineError(f"Node {i} of a draft tree is not in depth-first order.")
        path.append(i)
        depths[i] = len(path)
    for i in range(size - 1, -1, -1):  # the last node below each node
        if parents[i] != ROOT and last[parents[i]] < last[i]:
            last[parents[i]] = last[i]
    before = [0]  # leaves before each node
    for i in range(size):
        before.append(before[-1] + (last[i] == i))
    first, end = before[:-1], [before[last[i] + 1] for i in range(size)]
    n_leaves = before[-1]
    return TreeLayout(depths=tuple(depths), first_leaf=tuple(first), end_leaf=tuple(end), n_leaves=n_leaves)


def merge(paths: Iterable[Sequence[int]], max_nodes: int, max_depth: int) -> Tree:
    """The tree of all `paths`, common beginnings shared; earlier paths come first and fill `max_nodes` first."""
    children: dict[int, dict[int, int]] = {ROOT: {}}
    tokens: list[int] = []
    parents: list[int] = []
    for path in paths:
        node = ROOT
        for token in path[:max_depth]:
            if token not in children[node]:
                if len(tokens) == max_nodes:
                    break
                children[node][token] = len(tokens)
                children[len(tokens)] = {}
                tokens.append(token)
                parents.append(node)
            node = children[node][token]
    return depth_first(tokens, parents)


def depth_first(tokens: Sequence[int], parents: Sequence[int]) -> Tree:
    """The same nodes in depth-first order; children of one node keep their order. Parents stand before children."""
    children: list[list[int]] = [[] for _ in range(len(tokens) + 1)]  # the last one is the root's
    for i, parent in enumerate(parents):
        children[parent].append(i)
    new_index: dict[int, int] = {ROOT: ROOT}
    order: list[int] = []
    stack = children[ROOT][::-1]
    while stack:
        node = stack.pop()
        new_index[node] = len(order)
        order.append(node)
        stack.extend(reversed(children[node]))
    return Tree(tokens=tuple(tokens[i] for i in order), parents=tuple(new_index[parents[i]] for i in order))

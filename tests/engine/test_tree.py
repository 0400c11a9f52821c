"""Trees as values: their order, their leaves, and what is accepted of them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import Drafter
from mlsd.engine.rollback import make_rollback
from mlsd.engine.tree import ROOT, Tree, depth_first, layout, merge
from mlsd.engine.verify import Proposal, Verification, accept_tree, draw
from mlsd.errors import EngineError
from tests.engine.fake import FakeClock, FakeContext, FakeCosts, path_to
from tests.engine.test_decode import truth

MS = 1_000_000
trees = st.integers(1, 24).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 3), min_size=n, max_size=n), *(st.integers(-1, i - 1) for i in range(n))
    )
)


@given(made=trees)
def test_depth_first_order_keeps_every_path(made: tuple[list[int], int]) -> None:
    tokens, *parents = made
    plain = Tree(tokens=tuple(tokens), parents=tuple(parents))
    ordered = depth_first(tokens, parents)
    assert sorted(path_to(plain, i) for i in range(len(tokens))) == sorted(
        path_to(ordered, i) for i in range(len(tokens))
    )
    layout(ordered)


@given(made=trees)
def test_a_node_belongs_to_the_leaves_below_it_and_to_no_other(made: tuple[list[int], int]) -> None:
    tokens, *parents = made
    tree = depth_first(tokens, parents)
    plan = layout(tree)
    leaves = [i for i in range(len(tokens)) if i not in tree.parents]
    assert plan.n_leaves == len(leaves)
    for node in range(len(tokens)):
        below = []
        for number, leaf in enumerate(leaves):
            at = leaf
            while at not in (ROOT, node):
                at = tree.parents[at]
            if at == node:
                below.append(number)
        assert below == list(range(plan.first_leaf[node], plan.end_leaf[node]))
        assert plan.depths[node] == len(path_to(tree, node))


def test_another_order_is_refused() -> None:
    with pytest.raises(EngineError, match="Node 2 of a draft tree is not in depth-first order"):
        layout(Tree(tokens=(1, 2, 3), parents=(ROOT, ROOT, 0)))


def test_common_beginnings_are_shared() -> None:
    tree = merge([(1, 2, 3), (1, 2, 4), (5,), (1, 6)], max_nodes=9, max_depth=9)
    assert tree.tokens == (1, 2, 3, 4, 6, 5)
    assert tree.parents == (ROOT, 0, 1, 1, 0, ROOT)


def test_early_paths_fill_the_tree_and_none_is_too_long() -> None:
    assert merge([(1, 2, 3), (4,), (1, 5)], max_nodes=3, max_depth=2).tokens == (1, 2, 4)


def test_the_targets_tokens_are_followed_as_far_as_they_go() -> None:
    tree = merge([(1, 2, 3), (1, 4, 5)], max_nodes=9, max_depth=9)
    answers = {(): 1, (1,): 4, (1, 4): 9}
    result = accept_tree(tree, lambda node: answers[path_to(tree, node)])
    assert (result.accepted, result.committed) == (2, (1, 4, 9))
    assert [tree.tokens[node] for node in result.path] == [1, 4]


def test_the_rows_of_a_window_are_never_accepted() -> None:
    tree = Tree(tokens=(1, 2), parents=(ROOT, ROOT), n_window=1)
    assert accept_tree(tree, lambda node: 2).accepted == 0


@pytest.mark.parametrize(
    "tree", [merge([(1, 2)], 2, 2), merge([(0, 1), (1, 1), (2,)], 9, 9), merge([(0,), (1,), (2,)], 9, 9)]
)
def test_committed_tokens_follow_the_targets_distribution_whatever_the_tree(tree: Tree) -> None:
    law = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5], [0.2, 0.2, 0.6]])  # after ROOT, 0, 1, 2
    rng = np.random.default_rng(3)
    counts = np.zeros((3, 3))
    n_runs = 8_000
    for _ in range(n_runs):
        result = accept_tree(tree, lambda node: draw(law[(path_to(tree, node) or (-1,))[-1] + 1], rng))
        committed = list(result.committed)
        if len(committed) == 1:  # the next round draws the second token
            committed.append(draw(law[committed[0] + 1], rng))
        counts[committed[0], committed[1]] += 1
    expected = law[0][:, None] * law[1:]
    assert np.abs(counts / n_runs - expected).max() < 0.025


class ThreeWays(Drafter):
    """Proposes the right tokens on one branch of three, sometimes."""

    def __init__(self, right: int) -> None:
        self._right = right
        self._context: list[int] = []

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._context = list(prompt)

    def propose(self, k: int) -> Proposal:
        good: list[int] = []
        for _ in range(k):
            good.append(truth([*self._context, *good]))
        other = 1 + (good[min(self._right, k - 1)] % 250)
        paths = [good[: self._right] + [other] * (k - self._right), good[: self._right + 1], [other]]
        return Proposal(tree=merge(paths, 12, k))

    def observe(self, verification: Verification) -> None:
        self._context += verification.committed


def test_a_tree_round_is_counted_and_timed_like_any_other() -> None:
    clock, limits = FakeClock(), GenerationLimits(n_predict=12, gamma=4)
    costs = FakeCosts(pass_ns=10 * MS, row_ns=MS, sample_ns=3 * MS, truncate_ns=2 * MS)
    context = FakeContext(truth, ContextOptions(n_ctx=256), clock, costs)
    result = generate(context, ThreeWays(1), make_rollback("trim", context), (5, 6, 7), limits, clock)
    first = result.rounds[0]
    nodes = first.proposed
    assert (first.rows, first.accepted) == (1 + nodes, 2)
    assert first.verify_ns == (10 + nodes) * MS
    assert first.sample_ns == 3 * 3 * MS
    assert first.rollback_ns == 2 * MS
    assert sum(r.wall_ns for r in result.rounds) == result.decode_ns

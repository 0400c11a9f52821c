"""Branching batches through the real llama.cpp: every row is what decoding its path alone would give."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.trees import LlamaTreeContext
from mlsd.engine.tree import ROOT, Tree, depth_first, merge
from mlsd.errors import EngineError, UnsupportedError
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.synthetic.write import write_random
from tests.engine.fake import path_to

PLAIN = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False)
PREFIX = tuple(range(40, 60))


def options(tree: str = "keep", n_sequences: int = 16) -> ContextOptions:
    return ContextOptions(
        n_ctx=256, n_threads=1, device_sampling=False, n_sequences=n_sequences, tree=tree, max_outputs=64
    )


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[LlamaModel]:
    with LlamaModel(tiny / "llama.gguf") as made:
        yield made


@pytest.fixture(scope="module")
def precise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """Weights in float32: the order in which attention sums its cells moves logits by little."""
    path = tmp_path_factory.mktemp("precise") / "llama.gguf"
    write_random(path, TINY["llama"], seed=1, precision="F32")
    with LlamaModel(path) as loaded:
        yield loaded


def tree_session(model: LlamaModel, **changes: object) -> LlamaTreeContext:
    made = open_context(model, options(**changes))  # type: ignore[arg-type]
    assert isinstance(made, LlamaTreeContext)
    return made


def after(model: LlamaModel, tokens: Sequence[int]) -> Logits:
    """Logits after `tokens` decoded one by one behind the prefix."""
    with open_context(model, PLAIN) as context:
        context.decode(PREFIX)
        for token in tokens:
            context.decode((token,))
        return context.logits()[0]


def random_tree(seed: int, n: int = 22) -> Tree:
    rng = np.random.default_rng(seed)
    return depth_first(rng.integers(0, 256, n).tolist(), [int(rng.integers(max(-1, i - 6), i)) for i in range(n)])


def assert_same(found: Logits, expected: Logits) -> None:
    """But for the rounding of kernels that are as wide as a tree; another path lies at the spread of the logits."""
    assert np.abs(found - expected).max() < 0.02 * expected.std()


@pytest.mark.parametrize("seed", range(3))
def test_each_row_of_a_tree_equals_its_path_decoded_alone(model: LlamaModel, seed: int) -> None:
    tree = random_tree(seed)
    with tree_session(model) as context:
        for grown in (random_tree(seed + 1), tree):  # what was cleared leaves nothing
            context.clear()
            context.decode(PREFIX)
            context.decode_tree(7, grown)
        for node in range(ROOT, len(tree.tokens)):
            expected = after(model, (7, *path_to(tree, node)))
            assert_same(context.row(node), expected)


@pytest.mark.parametrize("mode", ["keep", "redecode"])
def test_a_kept_path_goes_on_as_if_it_had_been_decoded_alone(precise: LlamaModel, mode: str) -> None:
    """Several trees in a row, each keeping another path: the deepest, one in the middle, none, and a chain between."""
    text: list[int] = []
    rng = np.random.default_rng(5)
    with tree_session(precise, tree=mode) as context:
        context.decode(PREFIX)
        for step in range(6):
            tree = random_tree(10 + step)
            root = int(rng.integers(0, 256))
            context.decode_tree(root, tree)
            node = int(rng.integers(0, len(tree.tokens)))
            path: list[int] = []
            while node != ROOT and step != 2:
                path.insert(0, node)
                node = tree.parents[node]
            n_again = context.keep_path(path)
            assert n_again == (len(path) if mode == "redecode" else 0)
            text += [root, *(tree.tokens[i] for i in path)]
            if step == 3:
                context.decode((9, 8))
                text += [9, 8]
            assert context.n_past == len(PREFIX) + len(text)
        context.decode((1,))
        logits = context.logits()[0]
    np.testing.assert_allclose(logits, after(precise, [*text, 1]), atol=0.2)
    assert np.abs(logits - after(precise, [*text[:3], *text[4:], 1])).max() > 1, "the tolerance would hide a lost token"


def test_a_tree_with_too_many_leaves_is_refused(model: LlamaModel) -> None:
    with tree_session(model, n_sequences=2) as context:
        context.decode(PREFIX)
        with pytest.raises(EngineError, match="3 leaves does not fit"):
            context.decode_tree(7, merge([(1,), (2,), (3,)], 9, 9))


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe", "falcon-h1"])
def test_recurrent_memory_is_refused(tiny: Path, architecture: str) -> None:
    with (
        LlamaModel(tiny / f"{architecture}.gguf") as model,
        pytest.raises(UnsupportedError, match="recurrent memory, which cannot hold a tree"),
    ):
        open_context(model, options())


def test_more_leaves_than_the_engine_has_sequences_are_refused(model: LlamaModel) -> None:
    with pytest.raises(UnsupportedError, match="300 leaves"):
        open_context(model, options(n_sequences=300))

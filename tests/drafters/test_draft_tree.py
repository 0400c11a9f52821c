"""Trees from a draft model: grown as EAGLE-2 says, and each level what its paths give alone."""

from collections.abc import Sequence

import numpy as np

from mlsd.drafters.trees import expand, likeliest
from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.llama.open import open_context
from mlsd.engine.tree import ROOT
from tests.drafters.arena import Arena


def test_each_level_grown_equals_its_paths_decoded_alone(arena: Arena) -> None:
    prefix, plain = tuple(range(30, 44)), ContextOptions(n_ctx=256, n_threads=1, device_sampling=False)
    wide = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False, n_sequences=8, tree="keep", max_outputs=4)
    levels = [((1, 2, 3), (ROOT,) * 3), ((4, 5, 6, 7), (2, 0, 0, 1)), ((8, 9), (3, 1)), ((10, 11), (1, 1))]
    model = arena.model("llama")
    with open_context(model, wide) as context, open_context(model, plain) as single:
        for _ in range(2):  # a second tree starts from the prefix again
            context.clear()
            context.decode(prefix)
            paths: list[tuple[int, ...]] = [()]
            for tokens, parents in levels:
                rows = context.grow(tokens, parents)
                paths = [(*paths[max(parent, 0)], token) for token, parent in zip(tokens, parents, strict=True)]
                alone = []
                for path in paths:
                    single.clear()
                    single.decode(prefix)
                    for token in path:
                        single.decode((token,))
                    alone.append(single.logits()[0])
                # Levels are not in depth-first order, so kernels sum in another order; other paths lie far away.
                distances = np.abs(rows[:, None] - np.stack(alone)).max(axis=2)
                assert distances.diagonal().max() < 0.5
                assert (distances + 100 * np.eye(len(paths))).min() > 1
            context.truncate(len(prefix))


def table(rows: dict[tuple[int, ...], list[float]]):  # type: ignore[no-untyped-def]
    """A model that is a table of probabilities; remembers the levels it was asked for."""
    levels: list[list[tuple[int, ...]]] = []

    def logits(path: tuple[int, ...]) -> Logits:
        return np.log(np.array(rows[path], dtype=np.float32))

    def grow(tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        before = levels[-1] if levels else [()]
        levels.append([(*before[max(parent, 0)], token) for token, parent in zip(tokens, parents, strict=True)])
        return np.stack([logits(path) for path in levels[-1]])

    return logits(()), grow, levels


def test_the_likeliest_nodes_are_grown_and_kept() -> None:
    rows = {
        (): [0.6, 0.3, 0.1],
        (0,): [0.5, 0.3, 0.2],
        (1,): [0.9, 0.05, 0.05],
        (0, 0): [0.4, 0.3, 0.3],
        (1, 0): [0.98, 0.01, 0.01],
    }
    first, grow, levels = table(rows)
    tree = expand(first, grow, depth=3, top_k=2, n_nodes=5)
    assert levels == [[(0,), (1,)], [(0, 0), (1, 0)]]  # 0.30 and 0.27 beat 0.18 and 0.015
    # 0.6, 0.3 (two nodes), 0.27, 0.2646: the two branches, likelier first
    assert tree.tokens == (0, 0, 1, 0, 0)
    assert tree.parents == (ROOT, 0, ROOT, 2, 3)


def test_log_probabilities_are_those_of_the_softmax() -> None:
    logits = np.random.default_rng(1).normal(size=50).astype(np.float32)
    best, log_p = likeliest(logits, 5)
    softmax = np.exp(logits) / np.exp(logits).sum()
    assert best.tolist() == np.argsort(-softmax)[:5].tolist()
    np.testing.assert_allclose(np.exp(log_p), softmax[best], rtol=1e-5)

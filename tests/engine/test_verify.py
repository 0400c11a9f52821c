"""Acceptance rules keep the target's choice, or its distribution."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.engine.verify import accept_greedy, accept_sampled, draw, probabilities
from mlsd.records import Sampling

TOKENS = st.lists(st.integers(0, 5), max_size=12)


@given(TOKENS, st.data())
def test_greedy_stops_at_the_first_difference_and_takes_the_targets_token(
    tokens: list[int], data: st.DataObject
) -> None:
    n = len(tokens) + 1
    others = st.lists(st.integers(0, 5), min_size=n, max_size=n)
    target = data.draw(others | st.integers(0, 5).map(lambda bonus: [*tokens, bonus]))
    result = accept_greedy(tokens, target)
    assert list(result.committed) == [*tokens[: result.accepted], target[result.accepted]]
    assert list(result.committed) == target[: result.accepted + 1]
    if result.accepted < len(tokens):
        assert tokens[result.accepted] != target[result.accepted]


class ScriptedGenerator:
    """Stands in for a random generator: returns each of a grid of numbers in turn."""

    def __init__(self, values: tuple[float, ...]) -> None:
        self._values = iter(values)

    def random(self) -> float:
        return next(self._values)


@pytest.mark.parametrize(
    "q",
    [(0.125, 0.125, 0.5, 0.25), (0.0, 0.0, 1.0), (0.25, 0.125, 0.625), None],
    ids=["whole", "one token", "smaller vocabulary", "deterministic"],
)
def test_accept_sampled_follows_that_rule_on_a_fine_grid_of_draws(q: tuple[float, ...] | None) -> None:
    p = np.array([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]])
    draft = None if q is None else np.array([q])
    grid = (np.arange(64) + 0.5) / 64
    law = np.zeros(4)
    for x, weight in enumerate(q or (0, 0, 1)):
        for accept, pick in itertools.product(grid, grid):
            rng = ScriptedGenerator((accept, pick))
            result = accept_sampled([x], draft, p, rng)  # type: ignore[arg-type]
            first = result.committed[0]
            law[first] += weight / grid.size**2
    assert law == pytest.approx(p[0], abs=1 / 64)


def test_draw_takes_the_token_whose_share_holds_the_draw() -> None:
    shares = np.array([0.25, 0.0, 0.75])
    assert [draw(shares, ScriptedGenerator((u,))) for u in (0.0, 0.2, 0.25, 0.99)] == [0, 0, 2, 2]  # type: ignore[arg-type]


def test_probabilities_of_temperature_one_are_the_softmax() -> None:
    logits = np.array([[0.0, np.log(3.0)]], dtype=np.float32)
    assert probabilities(logits, Sampling(temperature=1.0))[0] == pytest.approx([0.25, 0.75])


def test_top_k_and_top_p_keep_the_most_likely_tokens_and_renormalize() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float32))
    assert probabilities(logits, Sampling(temperature=1.0, top_k=2))[0] == pytest.approx([0.625, 0.375, 0, 0])
    assert probabilities(logits, Sampling(temperature=1.0, top_p=0.6))[0] == pytest.approx([0.625, 0.375, 0, 0])
    assert probabilities(logits, Sampling(temperature=1.0, top_p=0.5))[0] == pytest.approx([1, 0, 0, 0])

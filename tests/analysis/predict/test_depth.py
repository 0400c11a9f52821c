"""T(k) at full depth from shallower models, on machines whose laws are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.analysis.predict.depth import Cut, full_depth
from mlsd.gguf_tools.shapes import FULL
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.gguf_tools.weigh import ModelWeight

DENSE, MOE = FULL["qwen3.5-4b"], FULL["qwen3.5-35b-a3b"]


def weight(name: str, n_layers: int | None = None) -> ModelWeight:
    return from_shape(FULL[name], n_layers=n_layers).weight


def cut(name: str, n_layers: int, law: Callable[[int, ModelWeight], float], error: float = 0.01) -> Cut:
    weigh = weight(name, n_layers)
    return Cut(n_layers=n_layers, weight=weigh, ms={k: law(k, weigh) for k in (1, 2, 5, 9)}, relative_error=error)


def by_bytes(k: int, w: ModelWeight) -> float:
    return 0.3 + w.active.n_bytes / 1e7 * (1 + 0.2 * (k - 1))


def slow_head(k: int, w: ModelWeight) -> float:
    """A head that costs three times as much a byte as the layers."""
    return 150.0 * k + w.active.n_bytes / 1e7 * (1 + 0.2 * (k - 1))


@given(depths=st.sets(st.sampled_from([2, 4, 8, 12]), min_size=2, max_size=3))
def test_a_machine_that_reads_bytes_is_predicted_from_any_two_depths(depths: set[int]) -> None:
    full = weight("qwen3.5-4b")
    found = full_depth([cut("qwen3.5-4b", n, by_bytes) for n in depths], full)
    for k in (1, 2, 5, 9):
        assert found[k].ms == pytest.approx(by_bytes(k, full), rel=0.02)


def test_two_depths_see_a_slow_head_that_one_depth_cannot() -> None:
    full = weight("qwen3.5-4b")
    one = full_depth([cut("qwen3.5-4b", 4, slow_head)], full)[5]
    two = full_depth([cut("qwen3.5-4b", n, slow_head, error=0.001) for n in (4, 12)], full)[5]
    truth = slow_head(5, full)
    assert abs(two.ms / truth - 1) < abs(one.ms / truth - 1)
    assert one.relative_error >= 0.10


def test_one_depth_of_a_mixture_says_that_it_does_not_know_how_rows_add_up() -> None:
    found = full_depth([cut("qwen3.5-35b-a3b", 4, by_bytes)], weight("qwen3.5-35b-a3b"))
    assert found[9].relative_error > found[1].relative_error
    assert found[1].relative_error == pytest.approx(0.1, abs=0.01)


def test_depths_that_disagree_are_less_sure_than_either() -> None:
    full = weight("qwen3.5-4b")
    agree = full_depth([cut("qwen3.5-4b", n, by_bytes) for n in (4, 12)], full)[1]
    odd = [cut("qwen3.5-4b", 4, by_bytes), cut("qwen3.5-4b", 12, lambda k, w: 1.5 * by_bytes(k, w))]
    assert full_depth(odd, full)[1].relative_error > agree.relative_error


def test_the_whole_shape_is_taken_as_it_was_timed_and_no_pass_is_shorter_than_a_plain_one() -> None:
    full = weight("qwen3.5-4b")
    whole = Cut(n_layers=DENSE.n_layers, weight=full, ms={1: 7.0, 2: 8.0}, relative_error=0.02)
    found = full_depth([cut("qwen3.5-4b", 4, by_bytes), whole], full)
    assert {k: one.ms for k, one in found.items()} == {1: 7.0, 2: 8.0}
    noisy = Cut(n_layers=4, weight=weight("qwen3.5-4b", 4), ms={1: 10.0, 2: 8.0}, relative_error=0.1)
    passes = full_depth([noisy], full)
    assert passes[2].ms == passes[1].ms

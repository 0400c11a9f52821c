"""Steps of T(k) belong to a build: before and after the kernels that were made for verification."""

from __future__ import annotations

import pytest

from mlsd.engine.llama.build.kernels import build_of, metal_steps
from mlsd.measure.worker.self_check import WIDTHS


@pytest.mark.parametrize(
    ("build", "device", "side"),
    [
        ("0c1e570-dirty", "Apple M2", "before"),
        ("0c1e570+1234abcd", None, "before"),
        ("b11403 abcdef0", "Apple M4 Pro", "before"),
        ("b11404 abcdef0", "Apple M4 Pro", "since"),
        ("b11524 86a2835-dirty+99d6edfc", "Apple M1", "since"),
        ("b11524 86a2835", "Apple M5 Max", "before"),  # its kernels stayed
        ("abcdef0", "Apple M1", None),
        (None, None, None),
    ],
)
def test_a_build_has_the_steps_of_its_side(build: str | None, device: str | None, side: str | None) -> None:
    steps = metal_steps(build, device)
    assert (None if steps is None else steps.side.split()[0]) == side


def test_a_number_is_read_where_there_is_one() -> None:
    assert build_of("b11524 86a2835-dirty") == 11524
    assert build_of("0c1e570") is None


def test_the_self_check_tries_a_width_on_both_sides_of_every_step() -> None:
    for build in ("0c1e570", "b11524 86a2835"):
        steps = metal_steps(build)
        assert steps is not None and steps.source
        tried = (1, *WIDTHS)
        for first, last in zip(steps.rows, (*steps.rows[1:], 10**6), strict=True):
            assert last - first == 1 or any(first <= width < last for width in tried), (build, first)

"""Steps of T(k) belong to a build: before and after the kernels that were made for verification."""

import pytest
from gguf import GGMLQuantizationType

from mlsd.engine.rollback_choice import NOISE_WIDTHS
from mlsd.hardware.metal_kernels import FEW_ROWS, metal_steps


@pytest.mark.parametrize(
    ("build", "side"),
    [
        ("0c1e570-dirty", "before"),
        ("0c1e570+1234abcd", "before"),
        ("b11403 abcdef0", "before"),
        ("b11404 abcdef0", "since"),
        ("b11524 86a2835-dirty+99d6edfc", "since"),
        ("b1-86a2835", "since"),
        ("b1-0ce8cd1", "since"),
        ("b1-abcdef0", None),
        ("abcdef0", None),
        (None, None),
    ],
)
def test_a_build_has_the_steps_of_its_side(build: str | None, side: str | None) -> None:
    steps = metal_steps(build)
    assert (None if steps is None else steps.side.split()[0]) == side


def test_few_rows_take_matrix_kernels_as_the_librarys_table_has_it_for_each_type_of_weight() -> None:
    """As the jump table of b11524's libggml-metal has it, by ggml's number of the type."""
    table = "060302020000030302000302030202000202020203020202000000000002040000000005000000030002"
    widths = {kind.name: int(table[2 * kind : 2 * kind + 2]) for kind in GGMLQuantizationType}
    later = {"Q2_0": 3}  # b11739's table, which has one more type
    assert {name: first for name, first in widths.items() if first} | later == FEW_ROWS
    steps = metal_steps("b11524 86a2835")
    assert steps is not None and set(FEW_ROWS.values()) <= set(steps.rows)


def test_the_self_check_tries_a_width_on_both_sides_of_every_step() -> None:
    for build in ("0c1e570", "b11524 86a2835"):
        steps = metal_steps(build)
        assert steps is not None
        tried = (1, *NOISE_WIDTHS)
        for first, last in zip(steps.rows, (*steps.rows[1:], 10**6), strict=True):
            assert last - first == 1 or any(first <= width < last for width in tried), (build, first)

import pytest

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import ggml
from mlsd.folders import asset_path
from mlsd.measure.worker.self_check import (
    Supports,
    device_supports,
    left_to_cpu,
    pass_operations,
    synchronised,
)

MOE = asset_path("tiny/tiny-moe.gguf")


def without(*lacking: str) -> Supports:
    """A device that lacks some operations, as Apple5 of hosted macOS runners has no simdgroup reduction."""
    return lambda node: ggml().ggml_op_desc(node).decode() not in lacking


def test_the_processor_has_every_operation_that_a_mixture_of_both_kinds_of_blocks_asks_for() -> None:
    with LlamaModel(MOE) as model:
        found = pass_operations(model, device_supports())
    assert {"MUL_MAT", "MUL_MAT_ID", "RMS_NORM", "GATED_DELTA_NET", "FLASH_ATTN_EXT", "ARGMAX"} <= set(found)
    assert all(found.values())


@pytest.mark.parametrize(("lacking", "ok"), [(("ARGMAX", "RMS_NORM"), None), (("MUL_MAT", "MUL_MAT_ID"), False)])
def test_what_a_device_lacks_is_named_and_without_matrix_products_it_fails(
    lacking: tuple[str, ...], ok: bool | None
) -> None:
    with LlamaModel(MOE) as model:
        n_other = len(pass_operations(model, device_supports())) - len(lacking)  # builds differ in how many
        answer = f"{', '.join(lacking)} would run on the CPU, {n_other} other operations on CPU"
        assert left_to_cpu(model, without(*lacking)) == (ok, answer, {})


def test_a_pass_that_ends_before_its_work_is_found_by_its_time() -> None:
    assert synchronised({256: 10e6, 1024: 45e6})[0]
    figures = {"256 tokens, ms": pytest.approx(0.1), "1024 tokens, ms": pytest.approx(0.12)}
    assert synchronised({256: 0.1e6, 1024: 0.12e6}) == (False, "4 times the tokens take 1.2 times as long", figures)

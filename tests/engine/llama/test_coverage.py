"""Expert coverage against a second way to the same answer: the router computed in numpy from the weights."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.taps import ReadTap, RouterContext, TappedContext, distinct_counts
from mlsd.errors import UnsupportedError
from mlsd.folders import asset_path
from mlsd.planning.prompts import load_prompt

Floats = npt.NDArray[np.float32]
OPTIONS = ContextOptions(n_ctx=512, n_threads=1)
N_TOKENS = 150


@pytest.fixture(params=["trained", "random"])
def mixture(request: pytest.FixtureRequest, tiny: Path) -> Path:
    """A trained tiny mixture with an F32 router, and a random one with a Q8_0 router."""
    return asset_path("tiny/tiny-moe.gguf") if request.param == "trained" else tiny / "qwen35moe.gguf"


def routers_in_numpy(path: Path, residuals: dict[int, Floats]) -> dict[int, npt.NDArray[np.int64]]:
    """RMS norm, router product and top-k of each layer from its residual stream, as the model's definition says."""
    reader = gguf.GGUFReader(str(path))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    n_used = int(reader.fields["qwen35moe.expert_used_count"].contents())
    eps = float(reader.fields["qwen35moe.attention.layer_norm_rms_epsilon"].contents())
    chosen = {}
    for layer, stream in residuals.items():
        norm = np.asarray(tensors[f"blk.{layer}.post_attention_norm.weight"].data)
        router = tensors[f"blk.{layer}.ffn_gate_inp.weight"]
        weights = gguf.quants.dequantize(router.data, router.tensor_type)
        x = stream / np.sqrt(np.mean(stream.astype(np.float64) ** 2, axis=1, keepdims=True) + eps) * norm
        if router.tensor_type == gguf.GGMLQuantizationType.Q8_0:  # the kernel then rounds the activations as well
            x = gguf.quants.dequantize(
                gguf.quants.quantize(x.astype(np.float32), router.tensor_type), router.tensor_type
            )
        logits = x.astype(np.float64) @ weights.reshape(-1, x.shape[1]).astype(np.float64).T
        chosen[layer] = np.argsort(-logits, axis=1, kind="stable")[:, :n_used]
    return chosen


def test_the_callback_reports_the_experts_that_the_weights_imply(mixture: Path) -> None:
    residuals: dict[int, list[Floats]] = {}

    def take(name: str, values: npt.NDArray[Any]) -> None:
        residuals.setdefault(int(name.rpartition("-")[2]), []).append(values)

    with LlamaModel(mixture) as model:
        tokens = model.tokenize(load_prompt("length-256").text)[:N_TOKENS]
        with RouterContext(model, OPTIONS) as context:
            reported = context.chosen(tokens)
        wide = ContextOptions(n_ctx=512, n_threads=1, max_outputs=64, device_sampling=False)
        tap = ReadTap(lambda name: name.startswith("attn_residual-"), take)
        with TappedContext(model, wide) as tapped, tapped.tapped(tap):
            for start in range(0, N_TOKENS, 64):  # batches of the same widths, so that the same kernels run
                tapped.decode(tokens[start : start + 64], n_outputs=len(tokens[start : start + 64]))
    expected = routers_in_numpy(mixture, {layer: np.concatenate(parts) for layer, parts in residuals.items()})
    assert set(reported) == set(expected)
    for layer, ids in reported.items():
        assert np.array_equal(np.sort(ids, axis=1), np.sort(expected[layer], axis=1)), f"layer {layer}"
        for window in (1, 2, 5, 17):
            assert distinct_counts(ids, window) == distinct_counts(expected[layer].astype(np.int32), window)


def test_a_dense_model_is_refused_with_a_reason(tiny: Path) -> None:
    with (
        LlamaModel(tiny / "llama.gguf") as model,
        RouterContext(model, OPTIONS) as context,
        pytest.raises(UnsupportedError, match="mixture of experts"),
    ):
        context.chosen(model.tokenize("one two three"))


def test_windows_slide_by_one_and_count_distinct_experts() -> None:
    ids = np.array([[0, 1], [1, 2], [1, 2], [3, 0]], dtype=np.int32)
    assert distinct_counts(ids, 1) == {2: 4}
    assert distinct_counts(ids, 2) == {2: 1, 3: 1, 4: 1}
    assert distinct_counts(ids, 4) == {4: 1}

"""Looking for blocks to leave out: the pure choice, and both searches on real models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.errors import InputError, UnsupportedError
from mlsd.gguf_tools.cut import uniform_skip
from mlsd.measure.conf_layers import module_confidence, select
from mlsd.measure.job import LayerSearchJob, LayersFound, ModelFile
from mlsd.measure.layer_search import search_layers
from mlsd.records import EngineOptions, ModelRef

TEXT = (
    "The bicycle began as a wooden machine with two wheels and no pedals. The rider sat on a saddle and pushed the "
    "ground with the feet. Please explain how the bicycle changed the daily life of people in cities and villages. "
    "Plants turn the energy of light into sugar. They take carbon dioxide from the air and water from the soil, and "
    "give oxygen back. Explain the two stages of this process in simple words, and say where each of them happens."
)


def search(path: Path, method: str, fraction: float, **options: object) -> LayersFound:
    return search_layers(
        LayerSearchJob(
            model=ModelFile(ref=ModelRef(id=path.stem), path=str(path)),
            engine=EngineOptions(n_threads=1),
            text=str(options.pop("text", TEXT)),
            method=method,  # type: ignore[arg-type]
            fraction=fraction,
            **options,  # type: ignore[arg-type]
        )
    )


def test_confidence_is_one_minus_normalised_entropy() -> None:
    assert module_confidence(np.zeros((3, 8), dtype=np.float32)) == pytest.approx(0)
    one_thing = np.array([[100.0, 0, 0, 0]], dtype=np.float32)
    assert module_confidence(one_thing) == pytest.approx(1)
    two_of_four = np.array([[50.0, 50.0, 0, 0]], dtype=np.float32)
    assert module_confidence(two_of_four) == pytest.approx(0.5)


@given(st.lists(st.floats(0, 2), min_size=5, max_size=60), st.floats(0.1, 0.5))
def test_a_choice_spares_both_ends_and_keeps_to_the_share(confidence: list[float], share: float) -> None:
    skipped = select(confidence, share)
    n = len(confidence)
    assert all(0 < layer < n - 1 for layer in skipped)
    assert len(set(skipped)) == len(skipped)
    assert len(skipped) <= max(1, round(share * n), int((share + 0.25) * n))
    assert skipped == tuple(sorted(skipped))


def test_a_block_less_confident_than_its_neighbours_goes_first() -> None:
    assert select([1.0, 1.0, 1.1, 0.2, 1.0, 1.1, 1.0, 1.0, 1.0, 1.0], 0.1) == (3,)


@pytest.mark.parametrize("method", ["greedy", "conflayers"])
def test_a_search_on_a_tiny_model_names_blocks_and_measures_them(tiny: Path, method: str) -> None:
    found = search(tiny / "llama.gguf", method, 0.34, n_tokens=32)
    assert found.n_candidates > 2
    assert found.skipped
    assert 0 not in found.skipped
    assert len(found.uniform) == len(found.skipped)
    assert 0 <= found.acceptance_rate <= 1


def test_what_cannot_be_searched_is_refused(tiny: Path) -> None:
    with pytest.raises(UnsupportedError, match="recurrent blocks"):
        search(tiny / "qwen35.gguf", "greedy", 0.3)
    with pytest.raises(InputError, match="less than one block"):
        search(tiny / "llama.gguf", "greedy", 0.01)
    with pytest.raises(InputError, match="tokens"):
        search(tiny / "llama.gguf", "greedy", 0.34, text="Hi.")


@pytest.mark.heavy
def test_a_searched_subset_of_a_real_model_is_accepted_twice_as_often_as_an_even_one(smollm2: Path) -> None:
    found = search(smollm2, "greedy", 0.3, n_tokens=32)
    assert found.uniform == uniform_skip(30, 0.3)
    assert len(found.skipped) == len(found.uniform) == 9
    assert found.acceptance_rate >= 2 * found.uniform_acceptance_rate
    assert found.acceptance_rate > 0.2

"""Looking for blocks to leave out: the pure choice, and both searches on real models."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.errors import InputError, UnsupportedError
from mlsd.folders import asset_path
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers, plan_cut
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.measure.messages import LayersFound
from mlsd.measure.worker.layer_search import least_confident, module_confidence, search_layers
from mlsd.planning.job import ModelFile
from mlsd.planning.prompts import load_prompt
from mlsd.records import EngineOptions, ModelRef
from tests.conftest import ARCHITECTURES
from tests.drafters.arena import Arena, prompt_of

TEXT = (
    "The bicycle began as a wooden machine with two wheels and no pedals. The rider sat on a saddle and pushed the "
    "ground with the feet. Please explain how the bicycle changed the daily life of people in cities and villages. "
    "Plants turn the energy of light into sugar. They take carbon dioxide from the air and water from the soil, and "
    "give oxygen back. Explain the two stages of this process in simple words, and say where each of them happens."
)

PROMPT = prompt_of(3)


def search(path: Path, method: str, fraction: float, **options: object) -> LayersFound:
    model, text = ModelFile(ref=ModelRef(id=path.stem), path=str(path)), str(options.pop("text", TEXT))
    return search_layers(model, EngineOptions(n_threads=1), text, method, fraction, **options)  # type: ignore[arg-type]


def test_confidence_is_one_minus_normalised_entropy() -> None:
    assert module_confidence(np.zeros((3, 8), dtype=np.float32)) == pytest.approx(0)
    one_thing = np.array([[100.0, 0, 0, 0]], dtype=np.float32)
    assert module_confidence(one_thing) == pytest.approx(1)
    two_of_four = np.array([[50.0, 50.0, 0, 0]], dtype=np.float32)
    assert module_confidence(two_of_four) == pytest.approx(0.5)


@given(st.lists(st.floats(0, 2), min_size=5, max_size=60), st.floats(0.1, 0.5))
def test_a_choice_spares_both_ends_and_keeps_to_the_share(confidence: list[float], share: float) -> None:
    skipped = least_confident(confidence, share)
    n = len(confidence)
    assert all(0 < layer < n - 1 for layer in skipped)
    assert len(set(skipped)) == len(skipped)
    assert len(skipped) <= max(1, round(share * n), int((share + 0.25) * n))
    assert skipped == tuple(sorted(skipped))


def test_a_block_less_confident_than_its_neighbours_goes_first() -> None:
    assert least_confident([1.0, 1.0, 1.1, 0.2, 1.0, 1.1, 1.0, 1.0, 1.0, 1.0], 0.1) == (3,)


@pytest.fixture(scope="module")
def arena(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """The tiny models; a deeper falcon-h1, as confidence compares blocks with their neighbours; the trained hybrids."""
    deep = tmp_path_factory.mktemp("deep") / "falcon-h1-deep.gguf"
    write_random(deep, msgspec.structs.replace(TINY["falcon-h1"], n_layers=6), seed=1)
    random = {name: tiny / f"{name}.gguf" for name in ARCHITECTURES}
    trained = {name: asset_path(f"tiny/{name}.gguf") for name in ("tiny-moe", "tiny-dense")}
    with closing(Arena({**random, **trained, "falcon-h1": deep}, n_ctx=512)) as made:
        yield made


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("method", ["greedy", "conflayers"])
def test_what_a_search_finds_is_exact(arena: Arena, architecture: str, method: str) -> None:
    found = search(arena.path(architecture), method, 0.34, n_tokens=24)
    assert found.n_candidates > 2
    assert found.skipped
    assert 0 not in found.skipped
    assert len(found.uniform) == len(found.skipped)
    assert_exact(arena, architecture, found.skipped, PROMPT)


def assert_exact(arena: Arena, name: str, skipped: Sequence[int], prompt: Sequence[int]) -> None:
    """The set as a synced file: the target's output, and a judge that sees a wrong token."""
    run = arena.run(name, f"layer-skip:mode=sync,skip={'+'.join(map(str, skipped))}", 2, prompt, 32)
    arena.assert_exact(name, prompt, run)
    arena.assert_forgery_is_found_out(name, prompt, run)
    assert "sync_ns" in run.stats, "sync fell back"


def test_a_block_with_attention_stays_whatever_the_share(tmp_path: Path) -> None:
    """Six blocks, one of them with attention and neither the first nor the last."""
    path = tmp_path / "one-attention.gguf"
    write_random(path, msgspec.structs.replace(TINY["qwen35"], n_layers=6), seed=1)
    assert attention_layers(Source(path)) == (3,)
    for method in ("greedy", "conflayers"):
        found = search(path, method, 0.6, n_tokens=24)
        assert 3 not in found.skipped
        assert found.skipped
        plan_cut(Source(path), [layer for layer in range(6) if layer not in found.skipped])  # can be written


@pytest.mark.parametrize("name", ["tiny-moe", "tiny-dense"])
def test_on_a_trained_hybrid_a_searched_set_is_at_least_as_good_as_an_even_one(arena: Arena, name: str) -> None:
    text = load_prompt("code").text + TEXT
    found = search(arena.path(name), "greedy", 0.25, text=text, n_tokens=64)
    assert len(found.skipped) == 2
    assert found.acceptance_rate >= found.uniform_acceptance_rate
    assert found.acceptance_rate > 0.3
    assert_exact(arena, name, found.skipped, arena.model(name).tokenize(text)[:128])


def test_what_cannot_be_searched_is_refused(tiny: Path) -> None:
    with pytest.raises(UnsupportedError, match="no set of 4 blocks"):
        search(tiny / "falcon-h1.gguf", "conflayers", 0.34)
    with pytest.raises(InputError, match="less than one block"):
        search(tiny / "llama.gguf", "greedy", 0.01)
    with pytest.raises(InputError, match="tokens"):
        search(tiny / "llama.gguf", "greedy", 0.34, text="Hi.")

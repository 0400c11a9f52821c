"""What is found of a file once: weights that are no numbers are refused by name, also where logits look well."""

import random
from pathlib import Path

import msgspec
import pytest

import mlsd.measure.probe_cache
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.rollback_choice import RollbackUse
from mlsd.errors import ModelFileError
from mlsd.measure.messages import progress_sink
from mlsd.measure.probe_cache import ProbeCache, check_weights
from mlsd.records import ModelRef
from tests.hostile.mutate import of_weights

NAMED = ModelRef(id="m", sha256="ab" * 32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "cache"))


def test_one_weight_that_is_no_number_is_enough(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(of_weights(tiny / "llama.gguf", random.Random(1)))
    LlamaModel(path).close()  # llama.cpp takes it, and quantized kernels may even swallow the NaN
    for ref in (NAMED, ModelRef(id="m"), NAMED):
        with pytest.raises(ModelFileError, match=r"NaN or infinite: tensor '.*weight' has invalid data"):
            check_weights(path, ref)


def test_a_file_with_a_hash_is_looked_at_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def load(path: Path, **options: object) -> LlamaModel:
        looked.append(path)
        return LlamaModel(path, check_weights=True)

    monkeypatch.setattr(mlsd.measure.probe_cache, "LlamaModel", load)
    for ref in (NAMED, NAMED, ModelRef(id="m"), ModelRef(id="m")):
        check_weights(tiny / "llama.gguf", ref)
    assert len(looked) == 3


USE = RollbackUse(strategy="trim", role="target", gamma=4)
OPTIONS = ContextOptions(n_ctx=256, n_threads=1)


def test_what_was_found_holds_for_one_model_build_use_and_every_option_of_a_context(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path)
    others = (
        {"kv_type": "q8_0"}, {"n_batch": 64}, {"n_ubatch": 64}, {"flash_attention": "off"}, {"n_threads": 2},
        {"tree": "keep"}, {"n_gpu_layers": 0},
    )  # fmt: skip
    paths = {cache._path(NAMED, msgspec.structs.replace(OPTIONS, **other), USE) for other in ({}, *others)}
    paths.add(cache._path(NAMED, OPTIONS, msgspec.structs.replace(USE, gamma=8)))
    assert len(paths) == 2 + len(others)


def test_a_check_is_made_once_with_signs_of_life_and_only_a_long_text_asks_for_the_contexts_length(
    tiny: Path, tmp_path: Path
) -> None:
    heard = list[str]()
    token = progress_sink.set(heard.append)
    longer = msgspec.structs.replace(OPTIONS, n_ctx=512)
    with LlamaModel(tiny / "llama.gguf") as model:
        found = ProbeCache(tmp_path).check(NAMED, OPTIONS, model, USE)
        n_passes = len(heard)
        assert ProbeCache(tmp_path).check(NAMED, longer, model, USE) == found
        assert len(heard) == n_passes > 10 and set(heard) == {"checking how llama rolls back"}
        ProbeCache(tmp_path).check(NAMED, longer, model, msgspec.structs.replace(USE, behind="long text"))
        assert len(heard) > n_passes
    progress_sink.reset(token)


def test_what_the_engine_refused_is_tried_again_in_the_next_session(tiny: Path, tmp_path: Path) -> None:
    with LlamaModel(tiny / "llama.gguf") as model:
        refused = msgspec.structs.replace(USE, strategy="snapshots")
        assert not ProbeCache(tmp_path).check(NAMED, OPTIONS, model, refused).exact
    assert not list(tmp_path.rglob("*.json"))

"""The shipped tiny family: its files are whole, compute what PyTorch computed, write Python, and predict each other."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.folders import asset_path

FOLDER = asset_path("tiny")
FAMILY = json.loads((FOLDER / "family.json").read_text())
FILES = tuple(FAMILY["models"])
MODELS = ("tiny-dense", "tiny-moe", "tiny-draft")
TARGETS = ("tiny-dense", "tiny-moe")
GAMMA = 4
LOGITS = ContextOptions(n_ctx=512, n_threads=1, device_sampling=False, max_outputs=512)
GREEDY = ContextOptions(n_ctx=512, n_threads=1, max_outputs=GAMMA + 1, n_snapshots=GAMMA + 1)


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "reference.npz") as file:
        return dict(file)


def path_of(name: str) -> Path:
    return FOLDER / str(FAMILY["models"][name]["file"])


@contextmanager
def opened(path: Path, options: ContextOptions) -> Iterator[LlamaContext]:
    with LlamaModel(path) as model, open_context(model, options) as context:
        yield context


# --- the files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_shipped_file_is_the_one_the_card_describes(name: str) -> None:
    card = FAMILY["models"][name]
    content = path_of(name).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (card["n_bytes"], card["sha256"])
    assert card["sha256"] in (FOLDER / "CARD.md").read_text()


def test_the_whole_family_fits_into_24_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 24e6


# --- the numbers --------------------------------------------------------------------------------------------------


def as_float32(source: Path, target: Path) -> Path:
    """The same model with every tensor written out in float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        sub_kind = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub_kind)
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def reference_difference(context: LlamaContext, name: str, stored: dict[str, np.ndarray]) -> float:
    """Largest difference to PyTorch's logits over the stored positions and columns."""
    tokens = stored["tokens"][0].astype(int).tolist()
    context.decode(tokens, n_outputs=len(tokens))
    logits = context.logits()
    top = np.take_along_axis(logits, stored[f"{name}.ids"].astype(int), axis=1)
    return float(
        max(
            np.abs(top - stored[f"{name}.top"]).max(),
            np.abs(logits[:, stored["columns"]] - stored[f"{name}.columns"]).max(),
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_computes_what_pytorch_computed(name: str, stored: dict[str, np.ndarray], tmp_path: Path) -> None:
    # Flash attention on a CPU rounds to float16 inside, and so do keys and values by default: 2e-3 in logits, where
    # plain attention over float32 shows 1e-5.
    exact = msgspec.structs.replace(LOGITS, flash_attention="off", kv_type="f32")
    with opened(as_float32(path_of(name), tmp_path / "f32.gguf"), exact) as context:
        assert reference_difference(context, name, stored) <= 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_number_format_moves_logits_only_a_little(name: str, stored: dict[str, np.ndarray]) -> None:
    spread = float(stored[f"{name}.columns"].std())
    with opened(path_of(name), LOGITS) as context:
        assert reference_difference(context, name, stored) <= 0.25 * spread


def test_llama_cpp_cuts_text_into_the_tokens_the_models_were_trained_on(stored: dict[str, np.ndarray]) -> None:
    text = stored["text"].tobytes().decode()
    for name in MODELS:
        with LlamaModel(path_of(name)) as model:
            tokens = model.tokenize(text)
            assert tokens == tuple(stored["text_ids"].tolist())
            assert model.detokenize(tokens) == text  # llama.cpp must not tidy spaces away
            assert model.is_end(0)

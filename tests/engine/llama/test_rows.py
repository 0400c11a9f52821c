"""Rows between blocks: what the blocks really hand on, at every position, and no request that ends the process."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama import native as _native
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.rows import Rows, check_layers
from mlsd.engine.llama.taps import ReadTap, TappedContext
from mlsd.engine.tree import Tree
from mlsd.errors import NativeError, UnsupportedError

TEXT = tuple(range(40, 64))
OPTIONS = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False, kind="layer-rows")
TAPPED = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False)


def rows_of(model: LlamaModel, layers: tuple[int, ...], options: ContextOptions = OPTIONS) -> np.ndarray:
    with open_context(model, options) as context:
        context.layer_rows.keep(layers)
        context.decode(TEXT)
        return context.layer_rows.rows[: len(TEXT)].copy()


@pytest.mark.parametrize(("name", "layers"), [("llama", (1, 3, 5)), ("qwen35", (2, 4, 8)), ("qwen35moe", (5, 1, 7))])
def test_rows_are_what_the_blocks_hand_on(tiny: Path, name: str, layers: tuple[int, ...]) -> None:
    """The input of block i is the output of block i - 1; after the last block it is the row under the head."""
    n_layers = {"llama": 6}.get(name, 8)
    last = "h_nextn" if _native.sequence_state_version() < 4 else "result_norm"  # b11524 names that row once
    names = [last if layer == n_layers else f"l_out-{layer - 1}" for layer in layers]
    with LlamaModel(tiny / f"{name}.gguf") as model:
        kept = rows_of(model, layers)
        with TappedContext(model, TAPPED) as context:
            rows = dict[str, Rows]()
            with context.tapped(ReadTap(names.__contains__, rows.__setitem__)):
                context.decode(TEXT)
    assert kept.std() > 0
    for i, layer in enumerate(names):
        kept_rows = kept[:, i * 64 : (i + 1) * 64]
        assert np.array_equal(kept_rows[-len(rows[layer]) :], rows[layer])


def test_the_first_blocks_row_is_the_embedding_of_its_token(tiny: Path) -> None:
    with LlamaModel(tiny / "llama.gguf") as model, open_context(model, OPTIONS) as context:
        context.layer_rows.keep((0,))
        context.decode((7, 9, 7))
        assert np.array_equal(context.layer_rows.rows[0], context.layer_rows.rows[2])
        assert not np.array_equal(context.layer_rows.rows[0], context.layer_rows.rows[1])


@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(8, 8), (16, 4)])
def test_rows_do_not_depend_on_how_the_text_is_split(tiny: Path, n_batch: int, n_ubatch: int) -> None:
    """Micro-batches and batches each leave their rows in one buffer; all must arrive."""
    layers = (2, 8)  # the latter is the row after the last block
    with LlamaModel(tiny / "qwen35.gguf") as model:
        whole = rows_of(model, layers)
        split = ContextOptions(n_ctx=256, n_threads=1, kind="layer-rows", n_batch=n_batch, n_ubatch=n_ubatch)
        kept_rows = rows_of(model, layers, split)
    assert np.abs(kept_rows - whole).max() < 0.2 * whole.std()  # narrower passes round otherwise


@pytest.mark.parametrize("commit", ["keep", "redecode"])
def test_of_a_tree_the_rows_of_the_kept_path_stay(tiny: Path, commit: Literal["keep", "redecode"]) -> None:
    tree = Tree(tokens=(1, 2, 3, 4, 5), parents=(-1, 0, 0, -1, 3))
    options = ContextOptions(
        n_ctx=256, n_threads=1, device_sampling=False, kind="layer-rows", n_sequences=4, tree=commit, max_outputs=8
    )
    with LlamaModel(tiny / "llama.gguf") as model:
        with open_context(model, options) as context:
            context.layer_rows.keep((1, 5))
            context.decode(TEXT)
            context.decode_tree(9, tree)
            context.keep_path((3, 4))
            kept = context.layer_rows.rows[: context.n_past].copy()
        with open_context(model, OPTIONS) as plain:
            plain.layer_rows.keep((1, 5))
            for token in (*TEXT, 9, 4, 5):
                plain.decode((token,))
            chain = plain.layer_rows.rows[: plain.n_past]
    # The kept cells of a path that is not the first are summed in another order, and a tree is wider than a token.
    assert np.abs(kept - chain).max() < 0.02 * chain.std()
    assert len(kept) == len(TEXT) + 3


@pytest.mark.parametrize(
    ("architecture", "layers", "message"),
    [
        ("falcon-h1", (1,), "graph of falcon-h1 does not give out"),
        ("qwen2", (), "graph of qwen2 does not give out"),
        ("llama", (6,), "layer 6; this llama target gives out 0 to 5"),
        ("llama", (-1,), "layer -1"),
        ("qwen35", (9,), "layer 9; this qwen35 target gives out 0 to 6"),
    ],
)
def test_what_a_graph_does_not_give_out_is_refused(architecture: str, layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_layers(architecture, 6, layers)
    check_layers("qwen35", 6, (0, 6))
    with pytest.raises(UnsupportedError, match="layer 6"):
        check_layers("qwen35", 6, (6,), last=False)


@pytest.mark.parametrize(("name", "layer"), [("falcon-h1", 1), ("llama", 6), ("llama", 7)])
def test_a_session_refuses_before_the_library_would_end_the_process(tiny: Path, name: str, layer: int) -> None:
    with LlamaModel(tiny / f"{name}.gguf") as model, open_context(model, OPTIONS) as context:
        with pytest.raises(UnsupportedError):
            context.layer_rows.keep((layer,))
        context.decode(TEXT)  # and works on


def test_a_library_without_the_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native.library(), "_lib", object())
    with pytest.raises(UnsupportedError, match="does not export _Z30llama_set_embeddings_layer_inp"):
        _native.layer_inputs.__wrapped__()


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "PINNED_VERSION", "0.0.1")
    with pytest.raises(NativeError, match=r"private symbols of 0\.0\.1"):
        _native.layer_inputs.__wrapped__()


def test_an_unchecked_session_keeps_no_rows(tiny: Path) -> None:
    options = ContextOptions(n_ctx=64, n_threads=1, kind="layer-rows", checked=False)
    with LlamaModel(tiny / "llama.gguf") as model, pytest.raises(UnsupportedError, match="unchecked"):
        open_context(model, options)

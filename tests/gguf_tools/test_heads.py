"""Files of drafting heads: what is read from them, and everything that would end llama.cpp's process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlsd.errors import MlsdError, ModelFileError, UnsupportedError
from mlsd.gguf_tools.heads import DraftingHead, read_head
from mlsd.gguf_tools.source import Source
from tests.gguf_tools.random_heads import write_random_dflash, write_random_eagle3
from tests.gguf_tools.rewritten import Data, rewrite


@pytest.fixture
def target(tiny: Path) -> Source:
    return Source(tiny / "llama.gguf")


def test_an_eagle3_head_says_which_layers_it_reads(tmp_path: Path, target: Source) -> None:
    for options in ({}, {"n_embd": 96}, {"n_vocab_draft": 64}, {"norm_before": True}):
        write_random_eagle3(tmp_path / "head.gguf", target, (1, 3, 5), **options)
        head = read_head(Source(tmp_path / "head.gguf"), target, "eagle3")
        assert head == DraftingHead(architecture="eagle3", target_layers=(1, 3, 5))


@pytest.mark.parametrize(
    ("options", "longest", "from_anchor"),
    [
        ({"n_block": 6}, 5, False),
        ({"n_block": 6, "markov": True}, 6, True),
        ({"n_block": 6, "markov": True, "anchor": False}, 5, False),
        ({"n_block": 6, "n_candidates": 4}, 5, False),
    ],
)
def test_a_dflash_head_says_how_much_one_block_proposes(
    tmp_path: Path, target: Source, options: dict[str, Any], longest: int, from_anchor: bool
) -> None:
    write_random_dflash(tmp_path / "head.gguf", target, (1, 5), **options)
    head = read_head(Source(tmp_path / "head.gguf"), target, "dflash")
    assert (head.longest, head.from_anchor, head.mask, head.causal) == (longest, from_anchor, 511, False)
    assert head.n_candidates == options.get("n_candidates", 0)


def test_a_file_without_block_size_has_the_drivers_blocks(tmp_path: Path, target: Source) -> None:
    write_random_dflash(tmp_path / "head.gguf", target, (1, 5))
    head = rewrite(Source(tmp_path / "head.gguf"), tmp_path / "changed.gguf", {"dflash.block_size": None})
    assert read_head(head, target, "dflash").longest == 15


EMPTY = np.zeros(0, dtype=np.float32)


def wrong_map(*tokens: int) -> Data:
    return {"d2t": np.array(tokens, dtype=np.int64)}


REFUSED: dict[str, list[tuple[dict[str, Any], dict[str, Any], Data, str]]] = {
    "eagle3": [
        ({}, {"eagle3.target_layers": ["a"]}, {}, "damaged: its target_layers"),
        ({}, {"eagle3.target_layers": None}, {}, "does not say which target layers"),
        ({}, {"eagle3.target_layers": [1, 2]}, {}, "reads 2 target layers"),
        ({}, {"eagle3.block_count": 2}, {}, "has 2 blocks"),
        ({}, {"eagle3.target_hidden_size": 128}, {}, "target rows of 128 numbers; this target's have 64"),
        ({}, {"eagle3.embedding_length": 128}, {}, "uses the target's tables, but is 128 wide"),
        ({}, {"eagle3.attention.value_length": 16}, {}, "keys of 32 numbers and values of 16"),
        ({"n_embd": 96}, {}, {"output.weight": EMPTY}, "uses the target's tables"),
        ({"n_embd": 96}, {}, {"token_embd.weight": np.zeros((500, 96), dtype=np.float32)}, "embedding table"),
        ({"n_vocab_draft": 64}, {}, {"output.weight": EMPTY}, "maps 64 tokens"),
        ({"n_vocab_draft": 4}, {}, {"d2t": np.zeros(4, dtype=np.float32)}, "token map .d2t. as F32"),
        ({"n_vocab_draft": 4}, {}, wrong_map(1, 2, 3, 512), "out of the vocabulary"),
        ({"n_vocab_draft": 4}, {}, wrong_map(1, 2, 3, 3), "two to one"),
        ({}, {"split.count": 2}, {}, "one of 2 files"),
    ],
    "dflash": [
        ({}, {"dflash.hyper_connection_count": 2}, {}, "DeepSeek-V4"),
        ({"markov": True}, {}, {"selector_hidden.weight": np.zeros((4, 64), dtype=np.float32)}, "and a Markov head"),
        ({}, {"tokenizer.ggml.mask_token_id": None}, {}, "no mask token"),
        ({}, {"tokenizer.ggml.mask_token_id": 512}, {}, "no mask token"),
        ({"n_block": 1}, {}, {}, "nothing to propose"),
        ({"markov": True}, {"dflash.block_size": None}, {}, "no block_size"),
        ({}, {"dflash.embedding_length": 128}, {}, "is 128 wide and the target 64"),
        ({}, {"dflash.attention.value_length": 16}, {}, "keys of 32 numbers and values of 16"),
        ({}, {"dflash.attention.sliding_window": 8}, {}, "sliding window that no block uses"),
    ],
}


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind, cases in REFUSED.items() for case in cases])
def test_a_head_that_would_end_the_process_is_refused(
    tmp_path: Path, target: Source, kind: str, case: tuple[dict[str, Any], dict[str, Any], Data, str]
) -> None:
    options, changed, data, message = case
    if kind == "eagle3":
        write_random_eagle3(tmp_path / "head.gguf", target, (1, 3, 5), **options)
    else:
        write_random_dflash(tmp_path / "head.gguf", target, (1, 5), **options)
    head = rewrite(Source(tmp_path / "head.gguf"), tmp_path / "changed.gguf", changed, data)
    with pytest.raises((UnsupportedError, ModelFileError), match=message):
        read_head(head, target, kind)


def test_a_file_of_another_kind_or_vocabulary_is_refused(tmp_path: Path, tiny: Path, target: Source) -> None:
    write_random_eagle3(tmp_path / "head.gguf", target, (1, 3, 5))
    head = Source(tmp_path / "head.gguf")
    with pytest.raises(MlsdError, match="is a file of llama, not a head for eagle3"):
        read_head(target, target, "eagle3")
    with pytest.raises(MlsdError, match="is a file of eagle3, not a head for dflash"):
        read_head(head, target, "dflash")
    tokens = [f"t{i}" for i in range(40)]
    other = rewrite(head, tmp_path / "other.gguf", {"tokenizer.ggml.tokens": tokens})
    with pytest.raises(MlsdError, match="vocabulary of 40 tokens, the target one of 512"):
        read_head(other, target, "eagle3")

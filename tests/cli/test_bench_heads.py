"""Drafting heads from the command line: measured by name, and refused with exit code 2 before anything is loaded."""

import json
from pathlib import Path

import msgspec
import pytest

from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.stream import new_gguf
from mlsd.gguf_tools.synthetic.write import write_random
from tests.cli.conftest import Mlsd
from tests.gguf_tools.random_heads import write_random_dflash, write_random_eagle3


@pytest.fixture(scope="module")
def heads(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads for the tiny llama, and some that do not fit it."""
    folder = tmp_path_factory.mktemp("heads")
    llama = Source(tiny / "llama.gguf")
    write_random_eagle3(folder / "eagle3.gguf", llama, (1, 3, 5))
    write_random_dflash(folder / "dflash.gguf", llama, (1, 5))
    wide = msgspec.structs.replace(TINY["llama"], n_embd=96)
    write_random(folder / "wide.gguf", wide, seed=1)
    write_random_eagle3(folder / "width.gguf", Source(folder / "wide.gguf"), (1, 3, 5))
    # No shape of mlsd's is a qwen2; the header alone is read.
    with new_gguf(folder / "qwen2.gguf", "qwen2", [], lambda writer: writer.add_block_count(0)) as _:
        pass
    return folder


@pytest.mark.parametrize(
    ("method", "head"), [("eagle3", "eagle3"), ("eagle3-tree:depth=2,top_k=3", "eagle3"), ("dflash", "dflash")]
)
def test_a_head_is_measured_by_its_methods_name(mlsd: Mlsd, tiny: Path, heads: Path, method: str, head: str) -> None:
    options = ("--gamma", 4, "--n-threads", 1, "--n-predict", 16, "--repeats", 1, "--json")
    draft = ("--drafter", method, "--draft", heads / f"{head}.gguf")
    result = mlsd("bench", tiny / "llama.gguf", *draft, *options)
    assert result.code == 0, result.err
    sd = next(trial for trial in json.loads(result.out)["trials"] if trial["arm"] == "sd")
    assert sd["valid"] is True
    assert sd["verdict"] in ("lossless", "near_tie")
    assert sd["proposed"] > 0
    assert sd["stats"]["draft_forward_ns"] > 0


@pytest.mark.parametrize(
    ("target", "method", "head", "words"),
    [
        ("llama", "eagle3", "width", "reads target rows of 96 numbers; this target's have 64"),
        ("falcon-h1", "dflash", "dflash", "graph of falcon-h1 does not give out the rows"),
        ("qwen2", "eagle3", "eagle3", "graph of qwen2 does not give out the rows"),
    ],
)
def test_a_head_that_cannot_work_is_refused_before_any_load(
    mlsd: Mlsd, tiny: Path, heads: Path, target: str, method: str, head: str, words: str
) -> None:
    def path(name: str) -> Path:
        return next(p for p in (heads / f"{name}.gguf", tiny / f"{name}.gguf") if p.exists())

    result = mlsd("bench", path(target), "--drafter", method, "--draft", path(head), "--gamma", 2)
    assert result.code == 2
    assert words in " ".join(result.err.split())

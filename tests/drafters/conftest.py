"""Targets that all methods are tried on."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from mlsd.gguf_tools.shape import TINY, TINY_ATTENTION
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.gguf_tools.synthetic.write import write_random
from tests.drafters.arena import Arena
from tests.drafters.head_arena import TABLES, MtpArena, make_arena
from tests.gguf_tools.adapters import config_of, random_weights, write_adapter, write_safetensors
from tests.gguf_tools.random_heads import write_random_dflash, write_random_eagle3

ADAPTED = {"llama": TINY["llama"], "qwen2": TINY_ATTENTION["qwen2"]}


@pytest.fixture(scope="session")
def real_arena(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder, files = tmp_path_factory.mktemp("real"), {"smollm2": smollm2}
    files |= {name: folder / f"{name}.gguf" for name in ("near", "eagle3", "dflash")}
    perturb(smollm2, files["near"], noise=0.05)
    write_random_eagle3(files["eagle3"], Source(smollm2), (2, 15, 27))
    write_random_dflash(files["dflash"], Source(smollm2), (1, 14, 29))
    with closing(Arena(files, n_ctx=1024)) as arena:
        yield arena


@pytest.fixture(scope="session")
def heads(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with closing(make_arena(tiny, tmp_path_factory.mktemp("heads"))) as arena:
        yield arena


@pytest.fixture(scope="session")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder = tmp_path_factory.mktemp("mtp")
    files = {}
    for name in ("qwen35", "qwen35moe"):
        files[name] = folder / f"{name}.gguf"
        write_random(files[name], msgspec.structs.replace(TINY[name], n_mtp_blocks=1), seed=4)
    for name, table in TABLES.items():
        files[name] = folder / f"{name}.gguf"
        write_random(files[name], table, seed=4)
    with closing(MtpArena(files)) as arena:
        yield arena


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> dict[str, Path]:
    """A random adapter for each architecture, and one that adds nothing before the target's own norm."""
    folder = tmp_path_factory.mktemp("adapters")
    folders = {name: write_adapter(folder / name, shape, seed=1) for name, shape in ADAPTED.items()}
    for name, shape in ADAPTED.items():
        path = write_adapter(folder / f"{name}-identity", shape, silent=True)
        tensors = random_weights(config_of(shape))
        tensors["layers.0.self_attn.o_proj.weight"][:] = 0
        tensors["norm.weight"] = Source(tiny / f"{name}.gguf").data("output_norm.weight").view("<f4")
        write_safetensors(path / "model.safetensors", tensors)
        folders[f"{name}-identity"] = path
    return folders

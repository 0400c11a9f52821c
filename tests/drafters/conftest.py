"""Targets that all methods are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.perturb import perturb
from tests.drafters.arena import Arena
from tests.gguf_tools.random_heads import write_random_dflash, write_random_eagle3


@pytest.fixture(scope="session")
def arena(tiny: Path) -> Iterator[Arena]:
    with closing(Arena({path.stem: path for path in tiny.glob("*.gguf")})) as made:
        yield made


@pytest.fixture(scope="session")
def real_arena(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder, files = tmp_path_factory.mktemp("real"), {"smollm2": smollm2}
    files |= {name: folder / f"{name}.gguf" for name in ("near", "eagle3", "dflash")}
    perturb(smollm2, files["near"], noise=0.05)
    write_random_eagle3(files["eagle3"], Source(smollm2), (2, 15, 27))
    write_random_dflash(files["dflash"], Source(smollm2), (1, 14, 29))
    with closing(Arena(files, n_ctx=1024)) as made:
        yield made

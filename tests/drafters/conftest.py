"""Targets that all methods are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mlsd.gguf_tools.perturb import perturb
from tests.drafters.arena import Arena


@pytest.fixture(scope="session")
def arena(tiny: Path) -> Iterator[Arena]:
    with closing(Arena({path.stem: path for path in tiny.glob("*.gguf")})) as made:
        yield made


@pytest.fixture(scope="session")
def real_arena(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    near = tmp_path_factory.mktemp("real") / "near.gguf"
    perturb(smollm2, near, noise=0.05)
    with closing(Arena({"smollm2": smollm2, "near": near}, n_ctx=1024)) as made:
        yield made

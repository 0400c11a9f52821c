"""Targets that all methods are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.drafters.arena import Arena


@pytest.fixture(scope="session")
def arena(tiny: Path) -> Iterator[Arena]:
    with closing(Arena({path.stem: path for path in tiny.glob("*.gguf")})) as made:
        yield made


@pytest.fixture(scope="session")
def real_arena(smollm2: Path) -> Iterator[Arena]:
    with closing(Arena({"smollm2": smollm2}, n_ctx=1024)) as made:
        yield made

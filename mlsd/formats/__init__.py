"""Study databases to other people's tables: one file a format. Exports are derived and can be made again."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from mlsd.errors import InputError, choose
from mlsd.folders import replacing
from mlsd.store.rows import TrialFilter
from mlsd.store.store import ALL, Store

_MODULES = {"csv": "delimited", "json": "document", "llama-bench": "llama_bench"}
EXPORTS = tuple(_MODULES)


def export(store: Store, kind: str, out: BinaryIO, chosen: TrialFilter = ALL) -> int:
    """Write the chosen trials to `out` and return how many rows or objects that were.

    Raises: InputError for a format that is unknown.
    """
    if kind not in EXPORTS:
        raise InputError(f"There is no export format {kind!r}.", hint=choose(kind, EXPORTS))
    count: int = importlib.import_module(f"{__name__}.{_MODULES[kind]}").write(store, out, chosen)
    return count


def write_file(path: Path, write: Callable[[BinaryIO], int]) -> int:
    """Let `write` fill a file that appears whole or not at all, and answer as it does. Raises: InputError."""
    with replacing(path, "Give a writable file with --output.") as part, part.open("wb") as out:
        return write(out)

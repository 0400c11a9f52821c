"""Study databases to other people's tables, and theirs into ours: one file a format.

Exports are derived and can be made again; imports go to the store's `imported` rows, apart from measured trials.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from mlsd.errors import InputError, TableError, choose
from mlsd.folders import replacing
from mlsd.measure.exchange.delimited import write_rounds
from mlsd.measure.store.rows import ImportedRow, ImportFormat, TrialFilter
from mlsd.measure.store.store import ALL, Store
from mlsd.outside import read_given

ExportFormat = Literal["csv", "json", "study-csv", "llama-bench"]
Content = Literal["trials", "rounds"]
EXPORTS: tuple[ExportFormat, ...] = get_args(ExportFormat)

_CALLED = {"csv": "delimited", "json": "document"}  # formats whose names Python's own modules have


def export(
    store: Store, kind: ExportFormat, out: BinaryIO, chosen: TrialFilter = ALL, *, content: Content = "trials"
) -> int:
    """Write the chosen trials, or their rounds, to `out` and return how many rows or objects that were.

    Raises: InputError for a format that is unknown or cannot hold rounds.
    """
    if kind not in EXPORTS:
        raise InputError(f"There is no export format {kind!r}.", hint=choose(kind, EXPORTS))
    if content == "rounds":
        if kind != "csv":
            raise InputError(f"{kind} holds no table of rounds.", hint="Rounds go to csv, and all of json.")
        return write_rounds(store, out, chosen)
    count: int = _format(kind).write(store, out, chosen)
    return count


def _format(kind: str) -> Any:
    return importlib.import_module(f"{__name__}.{_CALLED.get(kind, kind.replace('-', '_'))}")


def write_file(path: Path, write: Callable[[BinaryIO], int]) -> int:
    """Let `write` fill a file that appears whole or not at all, and answer as it does. Raises: InputError."""
    with replacing(path, "Give a writable file with --output.") as part, part.open("wb") as out:
        return write(out)


def read_table(path: Path, kind: ImportFormat) -> list[ImportedRow]:
    """The rows of somebody else's table.

    Raises: TableError naming file, line and column of the first thing that cannot be read.
    """
    data = read_given(path, TableError, "Give the path of a file.")
    rows: list[ImportedRow] = _format(kind).read(data, path.name, hashlib.sha256(data).hexdigest())
    return rows

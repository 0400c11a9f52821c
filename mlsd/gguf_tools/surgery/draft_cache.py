"""Drafts cut out of targets, each made once, in a folder of the cache of bounded size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from mlsd.folders import cache_dir, unwritable

MOST_BYTES = 10_000_000_000


def draft_folder() -> Path:
    """Where cut drafts are kept; it may not exist yet."""
    return cache_dir() / "drafts"


def cached_draft(name: str, write: Callable[[Path], None], *, most_bytes: int = MOST_BYTES) -> Path:
    """The draft of that file name (with a hash of its recipe in it), made by `write` unless it is there.

    While all are larger than `most_bytes`, the least recently used are removed. Raises: InputError, and what `write`
    raises.
    """
    folder = draft_folder()
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not path.is_file():
                write(path)
            # Only the time of the last use moves: size and modification time tell whether a known hash still holds.
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            _shrink(folder, path, most_bytes)
    except OSError as error:
        raise unwritable(folder, error) from error
    return path


def clear_drafts() -> int:
    """Remove every cut draft; returns the bytes that were freed."""
    folder = draft_folder()
    if not folder.is_dir():
        return 0
    with FileLock(folder / ".lock"):
        return _shrink(folder, None, 0)


def drafts_bytes() -> int:
    """Bytes of all cut drafts."""
    return sum(path.stat().st_size for path in _files(draft_folder()))


def _shrink(folder: Path, keep: Path | None, most_bytes: int) -> int:
    """Remove files but `keep`, least recently used first; returns the bytes freed."""
    files = sorted(_files(folder), key=lambda path: path.stat().st_atime_ns)
    total, freed = sum(path.stat().st_size for path in files), 0
    for path in files:
        if total - freed <= most_bytes:
            break
        if path != keep:
            freed += path.stat().st_size
            path.unlink()  # who has it open keeps it until it is closed
    return freed


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.is_file() and path.name != ".lock"]

"""SHA-256 of large files, each read once: known hashes stand in the user's folder, valid while a file is unchanged."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from mlsd.errors import InputError
from mlsd.folders import read_json, update_json, user_dir
from mlsd.records import Record

OnBytes = Callable[[int, int | None], None]  # bytes done so far, bytes in all where known

_CHUNK_BYTES = 1 << 22
_LARGE_BYTES = 1 << 30  # a file of this size with less than half of it on disc would be hours of zeros


class FileHash(Record, frozen=True, kw_only=True):
    """The SHA-256 of a file as it was: valid while size and modification time stand."""

    n_bytes: int
    mtime_ns: int
    sha256: str


def file_sha256(path: Path, *, fresh: bool = False, on_bytes: OnBytes | None = None) -> str:
    """SHA-256 of a file; remembered by (path, size, modification time) unless `fresh` asks to read it again.

    Raises: InputError when the file cannot be read.
    """
    remembered: dict[str, FileHash] = {}
    with contextlib.suppress(InputError):  # it only saves time: a damaged one is written anew
        remembered = {} if fresh else read_json(_hashes_file(), dict[str, FileHash])
    try:
        key, status = str(path.resolve()), path.stat()
        entry = remembered.get(key)
        if entry is not None and (entry.n_bytes, entry.mtime_ns) == (status.st_size, status.st_mtime_ns):
            return entry.sha256
        if status.st_size > _LARGE_BYTES and _is_mostly_a_hole(path, status):
            raise InputError(f"{path} is mostly a hole: no model, or a download that broke off.", hint="Get it again.")
        sha256 = digest(path, on_bytes)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    # As it was before it was read: one that changed meanwhile is read again.
    entry_now = {key: FileHash(n_bytes=status.st_size, mtime_ns=status.st_mtime_ns, sha256=sha256)}
    with contextlib.suppress(InputError):  # a read-only home costs the next call a re-read, no more
        update_json(_hashes_file(), dict[str, FileHash], lambda value: value.update(entry_now), damaged_is_empty=True)
    return sha256


def digest(path: Path, on_bytes: OnBytes | None = None) -> str:
    """SHA-256 of a file, read now; raises OSError."""
    running, done, n_bytes = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            running.update(chunk)
            done += len(chunk)
            if on_bytes is not None:
                on_bytes(done, n_bytes)
    return running.hexdigest()


def _is_mostly_a_hole(path: Path, status: os.stat_result) -> bool:
    n_on_disc = 512 * getattr(status, "st_blocks", 0)
    if n_on_disc:
        return 2 * n_on_disc < status.st_size
    # A file system that reports no blocks of any file, or a file without any: a hole begins with zeros.
    with path.open("rb") as file:
        return not any(file.read(_CHUNK_BYTES))


def _hashes_file() -> Path:
    return user_dir() / "hashes.json"

"""The user's own folder: a manifest of their models, the lock of what the hub stated, models made here, known hashes.

`MLSD_HOME` names the folder; without it macOS keeps it under Application Support, other systems under XDG_CONFIG_HOME.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

from mlsd.errors import InputError
from mlsd.records import Record

OnBytes = Callable[[int, int | None], None]  # bytes done so far, bytes in all where known

_CHUNK_BYTES = 1 << 22


class FileHash(Record, frozen=True, kw_only=True):
    """The SHA-256 of a file as it was: valid while size and modification time stand."""

    n_bytes: int
    mtime_ns: int
    sha256: str


class LockedFile(Record, frozen=True, kw_only=True):
    """What the hub stated of one file when it was first downloaded."""

    revision: str  # the commit
    sha256: str | None = None  # None: the hub stated none and the downloaded bytes were hashed instead
    n_bytes: int | None = None


def user_dir() -> Path:
    """The user's folder of mlsd; it may not exist yet."""
    if home := os.environ.get("MLSD_HOME"):
        return Path(home).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "mlsd"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "mlsd"


def cache_dir() -> Path:
    """Where mlsd keeps what can be made again: ``MLSD_CACHE``, else the platform's cache folder."""
    if "MLSD_CACHE" in os.environ:
        return Path(os.environ["MLSD_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mlsd"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlsd"


def user_manifest_path() -> Path:
    """The manifest that `mlsd models add` writes; it extends the shipped one."""
    return user_dir() / "gguf_manifest.toml"


def made_models_dir() -> Path:
    """Where models made on this machine (quantized, perturbed, cut) are kept."""
    return user_dir() / "models"


def read_lock() -> dict[str, dict[str, LockedFile]]:
    """What the hub stated: model id -> file name -> `LockedFile`.

    Raises: InputError when the lock file was damaged.
    """
    lock: dict[str, dict[str, LockedFile]] = _read_json(_lock_path(), dict[str, dict[str, LockedFile]])
    return lock


def write_lock(model_id: str, file: str, locked: LockedFile) -> None:
    """Record what the hub stated of one file of a model."""

    def change(lock: dict[str, dict[str, LockedFile]]) -> None:
        lock.setdefault(model_id, {})[file] = locked

    _update_json(_lock_path(), dict[str, dict[str, LockedFile]], change)


def file_sha256(path: Path, *, fresh: bool = False, on_bytes: OnBytes | None = None) -> str:
    """SHA-256 of a file; remembered by (path, size, modification time) unless `fresh` asks to read it again.

    Raises: InputError when the file cannot be read.
    """
    key = str(path.resolve())
    try:
        status = path.stat()
        known = {} if fresh else _known_hashes()
        entry = known.get(key)
        if entry is not None and (entry.n_bytes, entry.mtime_ns) == (status.st_size, status.st_mtime_ns):
            return entry.sha256
        sha256 = digest(path, on_bytes)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    remember_sha256(path, sha256)
    return sha256


def remember_sha256(path: Path, sha256: str) -> None:
    """Note the hash of a file as it is now, so that nobody reads it again."""
    status = path.stat()
    entry = FileHash(n_bytes=status.st_size, mtime_ns=status.st_mtime_ns, sha256=sha256)

    def change(known: dict[str, FileHash]) -> None:
        known[str(path.resolve())] = entry

    with contextlib.suppress(InputError):  # a read-only home costs the next call a re-read, no more
        _update_json(_hashes_path(), dict[str, FileHash], change, damaged_is_empty=True)


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


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new one, never a half.

    Raises: InputError when the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as part:
            part.write(text)
        Path(name).replace(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}.", hint="Set MLSD_HOME to a folder you may write."
        ) from error


def _lock_path() -> Path:
    return user_dir() / "models.lock.json"


def _hashes_path() -> Path:
    return user_dir() / "hashes.json"


def _known_hashes() -> dict[str, FileHash]:
    try:
        known: dict[str, FileHash] = _read_json(_hashes_path(), dict[str, FileHash])
    except InputError:  # it only saves time: a damaged one is written anew
        return {}
    return known


def _read_json(path: Path, kind: Any) -> Any:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path} is damaged: {error}.", hint="Delete it; `mlsd models pull` writes it anew."
        ) from error


def _update_json(path: Path, kind: Any, change: Callable[[Any], None], *, damaged_is_empty: bool = False) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=30):
            try:
                value = _read_json(path, kind)
            except InputError:
                if not damaged_is_empty:
                    raise
                value = {}
            change(value)
            encoded = msgspec.json.format(msgspec.json.encode(value, order="sorted"))
            write_atomically(path, encoded.decode() + "\n")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}.", hint="Set MLSD_HOME to a folder you may write."
        ) from error

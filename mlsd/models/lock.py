"""What was known of each file when it was first found: the lock next to the user's manifest."""

from __future__ import annotations

from pathlib import Path

from mlsd.folders import read_json, update_json, user_dir
from mlsd.records import Record


class LockedFile(Record, frozen=True, kw_only=True):
    """What the hub stated of one file when it was first downloaded, or where another program keeps it."""

    revision: str | None  # the commit; None: not from the hub
    sha256: str | None = None  # None: the hub stated none and the downloaded bytes were hashed instead
    n_bytes: int | None = None
    path: str | None = None  # of another program's file that is used
    replaces: str | None = None  # the revision in the manifest, which the repository no longer has


def read_lock() -> dict[str, dict[str, LockedFile]]:
    """What the hub stated: model id -> file name -> `LockedFile`. Raises: InputError when the lock file was damaged."""
    lock: dict[str, dict[str, LockedFile]] = read_json(_lock_path(), dict[str, dict[str, LockedFile]])
    return lock


def write_lock(model_id: str, file: str, locked: LockedFile) -> None:
    """Record what the hub stated of one file of a model."""

    def change(lock: dict[str, dict[str, LockedFile]]) -> None:
        lock.setdefault(model_id, {})[file] = locked

    update_json(_lock_path(), dict[str, dict[str, LockedFile]], change)


def _lock_path() -> Path:
    return user_dir() / "models.lock.json"

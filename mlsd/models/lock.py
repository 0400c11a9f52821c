"""What the hub says of a file, and what was known of each when it was first found: the lock of the user's manifest."""

from pathlib import Path

from mlsd.folders import read_json, update_json, user_dir
from mlsd.records import Record


class HubFile(Record, frozen=True, kw_only=True):
    """A file to have: which repository, which revision, and the hash it must have where one is known."""

    repo: str
    file: str
    revision: str | None = None  # commit, tag or branch; None: the head of main
    sha256: str | None = None


class RemoteFile(Record, frozen=True, kw_only=True):
    """What the hub says of a file."""

    revision: str  # commit
    etag: str
    sha256: str | None  # None for small files, which the hub names by their git hash
    n_bytes: int | None
    xet: bool  # it comes in many streams at once


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

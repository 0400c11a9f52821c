"""The one door to huggingface_hub: its cache, tokens, HF_ENDPOINT and offline mode, with downloads that resume.

The library itself downloads into a file of a random name and deletes it on failure, so 20 GB cut off at 19 start
anew. Here the bytes go into one part file per hash beside the cache, are checked there, and only a whole, right file
is moved to the name under which the library (and every other program using its cache) finds it. Plain HTTP is used
also where the hub offers its chunk protocol, because only that can go on from a cut.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers

from mlsd import __version__
from mlsd.errors import HubError
from mlsd.records import Record
from mlsd.units import format_bytes
from mlsd.userdir import OnBytes, digest, file_sha256, remember_sha256

_SHA256 = re.compile("[0-9a-f]{64}")
_SPARE_BYTES = 64 * 1024 * 1024  # left free on the disk after a download


class HubFile(Record, frozen=True, kw_only=True):
    """A file to have: which repository, which revision, and the hash it must have where one is known."""

    repo: str
    file: str
    revision: str | None = None  # None: the head of main
    sha256: str | None = None


class Stated(Record, frozen=True, kw_only=True):
    """What the hub says of a file."""

    revision: str  # commit
    etag: str
    sha256: str | None  # None for small files, which the hub names by their git hash
    n_bytes: int | None


class Pulled(Record, frozen=True, kw_only=True):
    """A file that is now in the cache, whole and with the right hash."""

    path: Path
    revision: str
    sha256: str
    n_bytes: int


class Hub:
    """The hub and its cache; without arguments as the environment sets them (HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN)."""

    def __init__(self, *, endpoint: str | None = None, cache_dir: Path | None = None) -> None:
        self.endpoint = endpoint or constants.ENDPOINT
        self.cache_dir = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()

    def cached(self, wanted: HubFile) -> Path | None:
        """The file's path when it is in the cache, without asking the network."""
        found = try_to_load_from_cache(wanted.repo, wanted.file, cache_dir=self.cache_dir, revision=wanted.revision)
        return Path(found) if isinstance(found, str) else None

    def stated(self, wanted: HubFile) -> Stated:
        """Ask the hub for commit, size and hash of a file.

        Raises: HubError when the hub cannot be reached or refuses.
        """
        with _explained(wanted, self.endpoint):
            found = get_hf_file_metadata(self._url(wanted), endpoint=self.endpoint, library_name="mlsd")
        if found.commit_hash is None or found.etag is None:
            raise HubError(
                f"{self.endpoint} names neither commit nor hash of {wanted.repo}/{wanted.file}.",
                hint="It is not a Hugging Face hub; check HF_ENDPOINT.",
            )
        sha256 = found.etag if _SHA256.fullmatch(found.etag) else None
        return Stated(revision=found.commit_hash, etag=found.etag, sha256=sha256, n_bytes=found.size)

    def pull(self, wanted: HubFile, stated: Stated, on_bytes: OnBytes | None = None) -> Pulled:
        """Have the file in the cache: go on where an earlier download stopped, check the hash, then give it its name.

        Raises: HubError when the download fails (what came stays for the next try) or the hash is wrong (it is
            deleted); nothing is ever seen under the final name but the whole, right file.
        """
        expected = wanted.sha256 or stated.sha256
        if wanted.sha256 is not None and stated.sha256 not in (None, wanted.sha256):
            raise HubError(
                f"{wanted.repo}/{wanted.file} has the hash {stated.sha256} on the hub, not {wanted.sha256}.",
                hint="The file was replaced there; pin `revision` in the manifest, or take the new `sha256`.",
            )
        fixed = HubFile(repo=wanted.repo, file=wanted.file, revision=stated.revision, sha256=expected)
        path = self.cached(fixed)
        if path is None:
            self._download(fixed, stated, on_bytes)
            with _explained(wanted, self.endpoint):  # the blob is in place: this only links it into the snapshot
                linked = hf_hub_download(
                    fixed.repo,
                    fixed.file,
                    revision=fixed.revision,
                    cache_dir=self.cache_dir,
                    endpoint=self.endpoint,
                    library_name="mlsd",
                )
            path = Path(linked)
        sha256 = file_sha256(path, on_bytes=on_bytes)
        if expected is not None and sha256 != expected:
            raise HubError(
                f"{path.resolve()} has the hash {sha256}, not {expected}.",
                hint="Delete it and run `mlsd models pull` again.",
            )
        return Pulled(path=path, revision=stated.revision, sha256=sha256, n_bytes=path.stat().st_size)

    def missing_bytes(self, wanted: HubFile, stated: Stated) -> int:
        """How much of a file has still to be downloaded; 0 where its size is not known."""
        if self._blob(wanted, stated).exists():
            return 0
        part = self._part(stated)
        done = part.stat().st_size if part.exists() else 0
        return max(0, (stated.n_bytes or 0) - done)

    def check_free_disk(self, n_bytes: int, what: str) -> None:
        """Refuse a download of `n_bytes` that the cache's disk cannot hold.

        Raises: HubError with the size needed and the size free.
        """
        free = free_bytes(self.cache_dir)
        if n_bytes + _SPARE_BYTES > free:
            raise HubError(
                f"{what} needs {format_bytes(n_bytes + _SPARE_BYTES)} of disk under {self.cache_dir}; "
                f"{format_bytes(free)} are free.",
                hint="Free some space, or set HF_HUB_CACHE to a folder on a larger disk.",
            )

    def _url(self, wanted: HubFile) -> str:
        return str(hf_hub_url(wanted.repo, wanted.file, revision=wanted.revision, endpoint=self.endpoint))

    def _part(self, stated: Stated) -> Path:
        return self.cache_dir / ".mlsd-parts" / f"{stated.etag}.part"

    def _blob(self, wanted: HubFile, stated: Stated) -> Path:
        folder: str = repo_folder_name(repo_id=wanted.repo, repo_type="model")
        return self.cache_dir / folder / "blobs" / stated.etag

    def _download(self, wanted: HubFile, stated: Stated, on_bytes: OnBytes | None) -> None:
        part, blob = self._part(stated), self._blob(wanted, stated)
        with _explained(wanted, self.endpoint), _alone(part):
            if blob.exists():
                return
            _fetch(self._url(wanted), part, stated.n_bytes, on_bytes)
            sha256 = digest(part)
            if wanted.sha256 is not None and sha256 != wanted.sha256:
                part.unlink()
                raise HubError(
                    f"{wanted.repo}/{wanted.file} was downloaded with the hash {sha256}, not {wanted.sha256}; "
                    "it was deleted.",
                    hint="Run the pull again; if it repeats, the file on the hub or a proxy between is damaged.",
                )
            blob.parent.mkdir(parents=True, exist_ok=True)
            part.replace(blob)
            remember_sha256(blob, sha256)


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk that holds `folder`, which need not exist yet."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _fetch(url: str, part: Path, n_bytes: int | None, on_bytes: OnBytes | None) -> None:
    """Bring the part file to its full length, from where it ends."""
    have = part.stat().st_size if part.exists() else 0
    if have and (n_bytes is None or have > n_bytes):  # nothing tells where it was cut, or it is not this file
        part.unlink()
        have = 0
    if n_bytes is None or have < n_bytes:
        with part.open("ab") as out:
            http_get(
                url,
                out,
                resume_size=have,
                headers=build_hf_headers(library_name="mlsd", library_version=__version__),
                expected_size=n_bytes,
                tqdm_class=_bar(on_bytes),
            )


def _bar(on_bytes: OnBytes | None) -> Any:
    """What http_get takes for a progress bar: counts bytes and passes them on."""

    class Bar:
        def __init__(self, *, total: int | None = None, initial: int = 0, **_: Any) -> None:
            self._done, self._total = initial, total

        def update(self, n: int) -> None:
            self._done += n
            if on_bytes is not None:
                on_bytes(self._done, self._total)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Bar


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Hold the part file against other processes that pull the same bytes."""
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(part.with_suffix(".lock"), timeout=5):
            yield
    except filelock.Timeout as error:
        raise HubError(
            "Another process is downloading the same file.", hint="Wait for it, then run this again."
        ) from error


@contextmanager
def _explained(wanted: HubFile, endpoint: str) -> Iterator[None]:
    """Turn the library's failures into a HubError that says what to do."""
    name = f"{wanted.repo}/{wanted.file}"
    try:
        yield
    except GatedRepoError as error:
        raise HubError(
            f"{wanted.repo} is gated: {endpoint} does not let you download {wanted.file}.",
            hint=f"Accept its terms at {endpoint}/{wanted.repo}, then run `hf auth login` or set HF_TOKEN.",
        ) from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"{endpoint} has no repository {wanted.repo}, or it is private.",
            hint="Check `repo` in the manifest; for a private one run `hf auth login` or set HF_TOKEN.",
        ) from error
    except RevisionNotFoundError as error:
        raise HubError(
            f"{wanted.repo} has no revision {wanted.revision}.", hint="Check `revision` in the manifest."
        ) from error
    except OfflineModeIsEnabled as error:
        raise HubError(
            f"{name} is not in the cache and offline mode is on.", hint="Unset HF_HUB_OFFLINE to download it."
        ) from error
    except EntryNotFoundError as error:
        if not isinstance(error, HfHubHTTPError):
            raise HubError(f"{name} cannot be found: {error}.", hint="Check your connection.") from error
        raise HubError(
            f"{wanted.repo} has no file {wanted.file} at revision {wanted.revision or 'main'}.",
            hint="Check `file` in the manifest; names there are case-sensitive.",
        ) from error
    except HfHubHTTPError as error:
        raise HubError(f"{endpoint} refused {name}: {_first_line(error)}.", hint="Try again later.") from error
    except (HTTPError, FileMetadataError) as error:
        raise HubError(
            f"{name} could not be downloaded from {endpoint}: {_first_line(error)}.",
            hint="Check your connection and run the same command again: it goes on where this one stopped.",
        ) from error
    except (HFValidationError, ValueError) as error:
        raise HubError(
            f"{name} cannot be downloaded: {_first_line(error)}.", hint="Check the manifest entry."
        ) from error
    except OSError as error:
        raise HubError(
            f"{name} could not be stored: {_first_line(error)}.",
            hint="Check the disk, then run the same command again: it goes on where this one stopped.",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")

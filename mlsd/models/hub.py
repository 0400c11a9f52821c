"""The one door to huggingface_hub: its cache, tokens, HF_ENDPOINT and offline mode, with downloads that resume.

Bytes go into one part file per hash beside the cache, are checked there, and only a whole, right file gets the name
under which the library finds it; so 20 GB cut off at 19 go on. Nothing that a server says becomes a path unchecked.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import filelock
from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    get_session,
    get_token,
    hf_hub_url,
    try_to_load_from_cache,
)
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
from huggingface_hub.utils.logging import set_verbosity_error

from mlsd import __version__
from mlsd.errors import HubError, RevisionError
from mlsd.folders import free_bytes
from mlsd.hashes import OnBytes, digest, file_sha256, remember_sha256
from mlsd.records import Record
from mlsd.redact import hide
from mlsd.units import format_bytes, format_duration

T = TypeVar("T")
OnWait = Callable[[str], object]  # gets what is being waited for

_SHA256 = re.compile("[0-9a-f]{64}")
_COMMIT = re.compile("[0-9a-f]{7,64}")
_ETAG = re.compile("[A-Za-z0-9._-]{1,128}")
_SPARE_BYTES = 64 * 1024 * 1024  # left free on the disk after a download
# Less than this in such a time is no download: a server may send a byte a second for ever.
PATIENCE_S = 60.0
_LEAST_BYTES = 1 << 16
# A hub that limits requests (HTTP 429) is waited for so long in all; its windows are five minutes long.
_MOST_WAIT_S = 600.0
_NOTICE_S = 30.0  # nothing is silent for longer
_FIRST_WAIT_S = 1.0  # at least; doubled each time, whatever it says

# The library prints each retry over our progress; what finally fails is raised, and `on_wait` reports limits.
if "HF_HUB_VERBOSITY" not in os.environ:
    set_verbosity_error()

# The library hands bytes on only when a piece is full; of its 10 MB a slow line shows nothing for minutes.
constants.DOWNLOAD_CHUNK_SIZE = _LEAST_BYTES


class HubFile(Record, frozen=True, kw_only=True):
    """A file to have: which repository, which revision, and the hash it must have where one is known."""

    repo: str
    file: str
    revision: str | None = None  # None: the head of main
    sha256: str | None = None


class RemoteFile(Record, frozen=True, kw_only=True):
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
        hide(get_token())  # which a hub may send back
        self.cache_dir = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()

    def cached(self, wanted: HubFile) -> Path | None:
        """The file's path when it is in the cache, without asking the network."""
        with _explained(wanted, self.endpoint):
            found = try_to_load_from_cache(wanted.repo, wanted.file, cache_dir=self.cache_dir, revision=wanted.revision)
        return Path(found) if isinstance(found, str) else None

    def stated(self, wanted: HubFile, on_wait: OnWait | None = None) -> RemoteFile:
        """Ask the hub for commit, size and hash of a file. Raises: HubError."""
        with _explained(wanted, self.endpoint):
            url = self._url(wanted)
            found = self._paced(
                lambda: _patiently(lambda: get_hf_file_metadata(url, endpoint=self.endpoint, library_name="mlsd")),
                on_wait,
            )
        name = f"{wanted.repo}/{wanted.file}"
        if found.commit_hash is None or found.etag is None:
            raise self._no_hub(f"names neither commit nor hash of {name}")
        for what, value, form in (("commit", found.commit_hash, _COMMIT), ("ETag", found.etag, _ETAG)):
            if not form.fullmatch(value) or not value.strip("."):
                raise self._no_hub(f"returned an invalid {what} {value[:80]!a} for {name}")
        if found.size is not None and found.size < 0:
            raise self._no_hub(f"states {found.size} bytes for {name}")
        sha256 = found.etag if _SHA256.fullmatch(found.etag) else None
        return RemoteFile(revision=found.commit_hash, etag=found.etag, sha256=sha256, n_bytes=found.size)

    def pull(
        self, wanted: HubFile, stated: RemoteFile, on_bytes: OnBytes | None = None, on_wait: OnWait | None = None
    ) -> Pulled:
        """Have the file in the cache: go on where an earlier download stopped, check the hash, then give it its name.

        Raises: HubError when the download fails (what came stays for the next try) or the hash is wrong (it is
        deleted).
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
            path = self._download(fixed, stated, on_bytes, on_wait)
        sha256 = file_sha256(path, on_bytes=on_bytes)
        if expected is not None and sha256 != expected:
            raise HubError(
                f"{path.resolve()} has the hash {sha256}, not {expected}.",
                hint="Delete it and run `mlsd models pull` again.",
            )
        return Pulled(path=path, revision=stated.revision, sha256=sha256, n_bytes=path.stat().st_size)

    def missing_bytes(self, wanted: HubFile, stated: RemoteFile) -> int:
        """How much of a file has still to be downloaded; 0 where its size is not known."""
        with _explained(wanted, self.endpoint):
            if self._blob(wanted, stated).exists():
                return 0
            part = self._part(wanted, stated)
            done = part.stat().st_size if part.exists() else 0
        return max(0, (stated.n_bytes or 0) - done)

    def check_free_disk(self, n_bytes: int, what: str) -> None:
        """Refuse a download of `n_bytes` that the cache's disk cannot hold. Raises: HubError."""
        free = free_bytes(self.cache_dir)
        if n_bytes + _SPARE_BYTES > free:
            raise HubError(
                f"{what} needs {format_bytes(n_bytes + _SPARE_BYTES)} of disk under {self.cache_dir}; "
                f"{format_bytes(free)} are free.",
                hint=space_hint(),
            )

    def _paced(self, work: Callable[[], T], on_wait: OnWait | None) -> T:
        waited_s, least_s = 0.0, _FIRST_WAIT_S
        while True:
            _show_limits()
            try:
                return work()
            except _TooManyRequests as error:
                wait_s = max(least_s, error.wait_s)
            if waited_s + wait_s > _MOST_WAIT_S:
                raise HubError(
                    f"{self.endpoint} limits requests (HTTP 429) and asks to wait another {format_duration(wait_s)}; "
                    f"mlsd waits {_MOST_WAIT_S / 60:g} minutes at most.",
                    hint="Run the same command again later: it goes on where this one stopped. With a token "
                    "(`hf auth login` or HF_TOKEN) the limit is higher.",
                )
            left_s = wait_s
            while left_s > 0:
                if on_wait is not None:
                    on_wait(f"{self.endpoint} limits requests (HTTP 429): trying again in {format_duration(left_s)}")
                step_s = left_s if on_wait is None else min(left_s, _NOTICE_S)
                time.sleep(step_s)
                left_s -= step_s
            waited_s, least_s = waited_s + wait_s, 2 * least_s

    def _no_hub(self, what: str) -> HubError:
        return HubError(f"{self.endpoint} {what}.", hint="It is not a Hugging Face hub; check HF_ENDPOINT.")

    def _url(self, wanted: HubFile) -> str:
        return str(hf_hub_url(wanted.repo, wanted.file, revision=wanted.revision, endpoint=self.endpoint))

    def _inside(self, *names: str) -> Path:
        root = os.path.abspath(self.cache_dir)  # noqa: PTH100 - not resolved: a cache may hold links to other disks
        path = Path(os.path.normpath(os.path.join(root, *names)))  # noqa: PTH118 - an absolute name must show
        if not path.is_relative_to(root) or path == Path(root):
            raise HubError(f"{'/'.join(names)!a} is outside the cache.", hint="Check the manifest entry.")
        return path

    def _repo(self, wanted: HubFile) -> str:
        return str(repo_folder_name(repo_id=wanted.repo, repo_type="model"))

    def _part(self, wanted: HubFile, stated: RemoteFile) -> Path:
        which = hashlib.sha256(f"{wanted.repo}/{wanted.file}".encode()).hexdigest()[:16]
        return self._inside(".mlsd-parts", f"{which}-{stated.etag}.part")

    def _blob(self, wanted: HubFile, stated: RemoteFile) -> Path:
        return self._inside(self._repo(wanted), "blobs", stated.etag)

    def _download(self, wanted: HubFile, stated: RemoteFile, on_bytes: OnBytes | None, on_wait: OnWait | None) -> Path:
        with _explained(wanted, self.endpoint):
            part, blob = self._part(wanted, stated), self._blob(wanted, stated)
            name = self._inside(self._repo(wanted), "snapshots", stated.revision, wanted.file)
            with _alone(part):
                if not blob.exists():
                    _remove_replaced(part)
                    sha256 = self._fetch_checked(wanted, stated, part, on_bytes, on_wait)
                    blob.parent.mkdir(parents=True, exist_ok=True)
                    part.replace(blob)
                    remember_sha256(blob, sha256)
                name.parent.mkdir(parents=True, exist_ok=True)
                name.unlink(missing_ok=True)
                try:
                    name.symlink_to(os.path.relpath(blob, name.parent))
                except OSError:  # a file system without links
                    blob.replace(name)
        return name

    def _fetch_checked(
        self, wanted: HubFile, stated: RemoteFile, part: Path, on_bytes: OnBytes | None, on_wait: OnWait | None
    ) -> str:
        most = free_bytes(part) - _SPARE_BYTES if stated.n_bytes is None else stated.n_bytes
        counter = _Counter(most, on_bytes)
        self._paced(lambda: _fetch(self._url(wanted), part, stated.n_bytes, counter), on_wait)
        sha256 = digest(part)
        if wanted.sha256 is not None and sha256 != wanted.sha256:
            part.unlink()
            raise HubError(
                f"{wanted.repo}/{wanted.file} was downloaded with the hash {sha256}, not {wanted.sha256}; "
                "it was deleted.",
                hint="Run the pull again; if it repeats, the file on the hub or a proxy between is damaged.",
            )
        return sha256


class _TooManyRequests(Exception):
    """The hub answered 429."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s


def _stop_at_limit(response: Any) -> None:
    """Raises: _TooManyRequests, before the library waits for as long as the server likes and says nothing of it."""
    if response.status_code == 429:
        pause = re.fullmatch(r"\s*([0-9]{1,9})\s*", response.headers.get("Retry-After", ""), re.ASCII)
        pause = pause or re.search(r";\s*t=([0-9]{1,9})\b", response.headers.get("RateLimit", ""), re.ASCII)
        raise _TooManyRequests(float(pause[1]) if pause else 0.0)


def _show_limits() -> None:
    """Have this process's HTTP client stop at a limit; the library makes a new client after a lost connection."""
    client = get_session()
    hooks = client.event_hooks
    if _stop_at_limit not in hooks["response"]:
        client.event_hooks = {**hooks, "response": [*hooks["response"], _stop_at_limit]}


def space_hint() -> str:
    """What to do where a disk is too full."""
    hint = "Free some space, or set HF_HUB_CACHE to a folder on a larger disk."
    if sys.platform != "darwin":
        return hint
    return f"{hint} Space that macOS calls purgeable is not counted: it frees that by itself, when a disk fills up."


class _Counter:
    """The bytes of one download: passed on, and bounded by what the file, or the disk, can hold."""

    def __init__(self, most: int, on_bytes: OnBytes | None) -> None:
        self.received = 0  # a server that starts anew sends some of them again
        self._most, self._on_bytes = most, on_bytes

    def bar(self) -> Any:
        """What http_get takes for a progress bar."""
        counter = self

        class _ProgressBar:
            def __init__(self, *, total: int | None = None, initial: int = 0, **_: Any) -> None:
                self._done, self._total = initial, total

            def update(self, n: int) -> None:
                self._done += n
                counter.received += max(0, n)
                if self._done > counter._most:
                    raise HubError(f"The server sends more than the {counter._most} bytes that the file may have.")
                if counter._on_bytes is not None:
                    counter._on_bytes(self._done, self._total)

            def __enter__(self) -> _ProgressBar:
                return self

            def __exit__(self, *_: object) -> None:
                pass

        return _ProgressBar


def _fetch(url: str, part: Path, n_bytes: int | None, counter: _Counter) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have and (n_bytes is None or have > n_bytes):  # nothing tells where it was cut, or it is not this file
        part.unlink()
        have = 0
    if n_bytes is None or have < n_bytes:
        with part.open("ab") as out:  # a download that was given up finds it closed
            _patiently(
                lambda: http_get(
                    url,
                    out,
                    resume_size=have,
                    headers=build_hf_headers(library_name="mlsd", library_version=__version__),
                    expected_size=n_bytes,
                    tqdm_class=counter.bar(),
                ),
                lambda: counter.received,
            )


def _patiently(work: Callable[[], T], received: Callable[[], int] = int) -> T:
    """Do what waits for a server, in a thread. Raises: HubError when less than `_LEAST_BYTES` came in `PATIENCE_S`."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    before = 0
    while thread.is_alive():
        thread.join(PATIENCE_S)
        now = received()
        if thread.is_alive() and now - before < _LEAST_BYTES:
            raise HubError(
                f"The server sent {now - before} bytes in {PATIENCE_S:g} s.",
                hint="Check your connection and run the same command again: it goes on where this one stopped.",
            )
        before = now
    if errors:
        raise errors[0]
    return answers[0]


def _remove_replaced(part: Path) -> None:
    """Remove what earlier downloads left of other contents of the same file; nobody will ever finish them."""
    which = part.name.partition("-")[0]
    for old in part.parent.glob(f"{which}-*.part"):
        if old != part:
            with suppress(HubError), _alone(old, wait_s=0):  # somebody may be at it this moment
                old.unlink(missing_ok=True)


@contextmanager
def _alone(part: Path, *, wait_s: float = 5) -> Iterator[None]:
    """Hold the part file against other processes that pull the same bytes."""
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(part.with_suffix(".lock"), timeout=wait_s):
            yield
    except filelock.Timeout as error:
        raise HubError(
            "Another process is downloading the same file.", hint="Wait for it, then run this again."
        ) from error


@contextmanager
def _explained(wanted: HubFile, endpoint: str) -> Iterator[None]:
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
        raise RevisionError(
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

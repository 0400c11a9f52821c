"""The one door to huggingface_hub: its cache, tokens, HF_ENDPOINT, offline mode and hf-xet.

What comes over plain HTTP is kept where a download stops, as the library does not: 20 GB cut off at 19 go on.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
from huggingface_hub import constants, errors, get_hf_file_metadata, get_token, hf_hub_download, hf_hub_url
from huggingface_hub import try_to_load_from_cache as load_from_cache
from huggingface_hub.file_download import http_get, is_xet_available, repo_folder_name
from huggingface_hub.utils import build_hf_headers, tqdm

from mlsd.errors import HubError, RevisionError
from mlsd.hashes import OnBytes
from mlsd.models.lock import HubFile, RemoteFile
from mlsd.redact import hide

OnWait = Callable[[str], object]  # gets what is being waited for
_AGAIN = "run the same command again: what came over plain HTTP is kept."
_TOKEN = "run `hf auth login` or set HF_TOKEN"
# Of what the library raises the first that fits: what to tell, and what to do.
_EXPLAINED: tuple[tuple[type[Exception], str, str], ...] = (
    (errors.GatedRepoError, "it is gated", f"Accept the terms on the repository's page, then {_TOKEN}."),
    (errors.RepositoryNotFoundError, "no such repository, or a private one", f"Check the name, or {_TOKEN}."),
    (errors.RevisionNotFoundError, "there is no revision {revision}", "Check `revision` in the manifest."),
    (errors.RemoteEntryNotFoundError, "no such file at revision {revision}", "Check `file` in the manifest."),
    (errors.OfflineModeIsEnabled, "it is not in the cache and offline mode is on", "Unset HF_HUB_OFFLINE."),
    (errors.HfHubHTTPError, "{error}", f"Later {_AGAIN} With a token it may be asked more often: {_TOKEN}."),
    (filelock.Timeout, "another process is downloading it", "Wait for it, then run this again."),
    (ValueError, "{error}", "Check the manifest entry."),
    (Exception, "{error}", f"Check your connection and the disk, then {_AGAIN}"),
)  # fmt: skip


class Hub:
    """The hub and its cache; without arguments as the environment sets them (HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN)."""

    def __init__(self, *, endpoint: str | None = None, cache_dir: Path | None = None) -> None:
        self.endpoint = endpoint or constants.ENDPOINT
        hide(get_token())  # which a hub may send back
        self.cache_dir = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()

    def cached(self, wanted: HubFile) -> Path | None:
        """The file's path when it is in the cache, without asking the network."""
        with self._explained(wanted):
            path = load_from_cache(wanted.repo, wanted.file, cache_dir=self.cache_dir, revision=wanted.revision)
        return Path(path) if isinstance(path, str) else None

    def stated(self, wanted: HubFile, on_wait: OnWait | None = None) -> RemoteFile:
        """Ask the hub for commit, size and hash of a file. Raises: HubError."""
        with self._explained(wanted, on_wait):
            url = self._url(wanted, wanted.revision)
            metadata = get_hf_file_metadata(url, endpoint=self.endpoint, library_name="mlsd", retry_on_errors=True)
            if not all(name and name.isalnum() for name in (metadata.commit_hash, metadata.etag)):
                raise ValueError(f"{self.endpoint} gives no commit and hash; is HF_ENDPOINT a Hugging Face hub?")
        sha256 = metadata.etag if len(metadata.etag) == 64 else None
        xet = metadata.xet_file_data is not None and is_xet_available()
        return RemoteFile(
            revision=metadata.commit_hash, etag=metadata.etag, sha256=sha256, n_bytes=metadata.size, xet=xet
        )

    def pull(
        self, wanted: HubFile, stated: RemoteFile, on_bytes: OnBytes | None = None, on_wait: OnWait | None = None
    ) -> Path:
        """Have the whole file in the cache; its hash is for the caller to check. Raises: HubError; what came stays."""
        if wanted.sha256 is not None and stated.sha256 not in (None, wanted.sha256):
            text = f"{wanted.repo}/{wanted.file} has the hash {stated.sha256} on the hub, not {wanted.sha256}."
            raise HubError(text, hint="It was replaced there: pin `revision`, or take its `sha256`, in the manifest.")
        bar: Any = _bar(on_bytes)
        with self._explained(wanted, on_wait):
            if not stated.xet:
                self._fetch(wanted, stated, bar)
            here = {"revision": wanted.revision, "endpoint": self.endpoint, "cache_dir": self.cache_dir}
            return Path(hf_hub_download(wanted.repo, wanted.file, **here, library_name="mlsd", tqdm_class=bar))

    def missing_bytes(self, wanted: HubFile, stated: RemoteFile) -> int:
        """How much of a file has still to be downloaded; 0 where its size is not known."""
        done = next((path.stat().st_size for path in self._places(wanted, stated)[:2] if path.exists()), 0)
        return max(0, (stated.n_bytes or 0) - done)

    def _url(self, wanted: HubFile, revision: str | None) -> str:
        return str(hf_hub_url(wanted.repo, wanted.file, revision=revision, endpoint=self.endpoint))

    def _places(self, wanted: HubFile, stated: RemoteFile) -> tuple[Path, Path, Path]:
        """Where the library looks for the bytes first, where they lie until they are whole, and the library's lock."""
        repo = repo_folder_name(repo_id=wanted.repo, repo_type="model")
        blob = self.cache_dir / repo / "blobs" / stated.etag
        return blob, blob.with_suffix(".incomplete"), self.cache_dir / ".locks" / repo / f"{stated.etag}.lock"

    def _fetch(self, wanted: HubFile, stated: RemoteFile, bar: Any) -> None:
        blob, part, lock = self._places(wanted, stated)
        for path in (blob, lock):
            path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock, timeout=5.0):
            if blob.exists():
                return
            with part.open("ab") as out:  # told of no size, the library does not refuse files over 50 GB
                if stated.n_bytes is None or out.tell() < stated.n_bytes:
                    url, headers = self._url(wanted, stated.revision), build_hf_headers(library_name="mlsd")
                    http_get(url, out, resume_size=out.tell(), headers=headers, tqdm_class=bar)
                if out.tell() < (stated.n_bytes or 0):
                    raise OSError(f"{out.tell()} of {stated.n_bytes} bytes came")
            part.replace(blob)

    @contextmanager
    def _explained(self, wanted: HubFile, on_wait: OnWait | None = None) -> Iterator[None]:
        """Tell what fails in our words, and what the library waits for, which it would print."""
        log, notes = logging.getLogger("huggingface_hub"), _Warnings()
        before, log.handlers, notes.say = log.handlers, [notes], on_wait or str
        try:
            yield
        except (OSError, ValueError, errors.HTTPError) as error:
            kind, text, hint = next(row for row in _EXPLAINED if isinstance(error, row[0]))
            first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            why = text.format(revision=wanted.revision or "main", error=first)
            failed = RevisionError if kind is errors.RevisionNotFoundError else HubError
            raise failed(f"{wanted.repo}/{wanted.file} of {self.endpoint}: {why}.", hint=hint) from error
        finally:
            log.handlers = before


class _Warnings(logging.Handler):
    say: OnWait = str

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(("Rate limited", "Retrying")):
            self.say(record.getMessage())


def _bar(on_bytes: OnBytes | None) -> Any:
    """What the library takes for its progress bar; of hf-xet's two only the one of bytes that are in place counts."""

    class DownloadBar(tqdm):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "disable": True})
            self.shown = "downloading bytes" not in options["desc"].lower()

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if on_bytes is not None and self.shown:
                on_bytes(int(self.n), self.total)

    return DownloadBar

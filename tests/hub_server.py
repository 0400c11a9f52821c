"""A real HTTP server on loopback that speaks the part of the hub's protocol that mlsd's client uses.

HEAD and GET of ``/REPO/resolve/REVISION/FILE`` with commit, ETag, linked size and Range, and the refusals of the real
hub: unknown repository, revision or file, gated, and broken in the ways a network breaks.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

ROOT = Path(__file__).parents[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "76543210fedcba9876543210fedcba9876543210"
REPO = "someone/some-model"


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that hangs up is no fault of the server, and what it prints would be taken for the client's."""


class HubServer:
    """Serves `files` of one repository; the attributes below break it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.commit = COMMIT
        self.token: str | None = None  # gated: only requests with this token pass
        self.cut_after_bytes: int | None = None  # close the connection after so many bytes of each answer
        self.stated_sha256: dict[str, str] = {}  # what the hub claims where it is not the truth
        self.ignores_range = False
        self.etag: str | None = None  # in place of the hash
        self.stated_size: int | None = None  # in place of the file's
        self.xet = False  # the bytes lie in xet storage
        self.tags: dict[str, str] = {}  # tag or branch -> commit
        self.holes: dict[str, int] = {}  # bytes of zeros before those of a file, which are never sent
        self.storage_url: str | None = None  # redirect to another server, as the real hub does for large files
        self.limits: dict[str, list[dict[str, str]]] = {}  # by method: headers of the next answers, which are 429
        self.hold_after_bytes: int | None = None  # stop sending there until `go_on` is set
        self.held, self.go_on = threading.Event(), threading.Event()
        self.tokens: set[str | None] = set()  # Authorization headers seen
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.sent_bytes = 0
        self._server = _Quiet(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def sha256(self, file: str) -> str:
        return self.stated_sha256.get(file) or hashlib.sha256(self.files[file]).hexdigest()

    def ranges(self) -> list[str | None]:
        return [range_ for method, path, range_ in self.requests if method == "GET" and not path.startswith("/api/")]

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            hub.requests.append((self.command, self.path, self.headers.get("Range")))
            hub.tokens.add(self.headers.get("Authorization"))
            # The library asks things of its own as well.
            if not self.path.startswith("/api/") and hub.limits.get(self.command):
                return self._refuse(429, "RateLimited", **hub.limits[self.command].pop(0))
            if self.path.startswith("/storage/"):
                return self._send(unquote(self.path).removeprefix("/storage/"), body=body)
            match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", unquote(self.path))
            if match is None or match[1] != REPO:
                return self._refuse(401, "RepoNotFound")
            if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self._refuse(401, "GatedRepo")
            if match[2] not in ("main", hub.commit, *hub.tags):
                return self._refuse(404, "RevisionNotFound")
            if match[3] not in hub.files:
                return self._refuse(404, "EntryNotFound")
            if hub.storage_url is not None:
                return self._redirect(match[3])
            return self._send(match[3], body=body)

        def _refuse(self, status: int, code: str, **headers: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", hub.commit)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _redirect(self, file: str) -> None:
            self.send_response(302)
            self.send_header("Location", f"{hub.storage_url}/storage/{quote(file)}")
            self._describe(file)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _describe(self, file: str) -> None:
            self.send_header("X-Repo-Commit", hub.commit)
            etag = hub.sha256(file) if hub.etag is None else hub.etag
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Linked-ETag", f'"{etag}"')
            size = hub.holes.get(file, 0) + len(hub.files[file]) if hub.stated_size is None else hub.stated_size
            self.send_header("X-Linked-Size", str(size))
            self.send_header("Accept-Ranges", "bytes")
            if hub.xet:
                self.send_header("X-Xet-Hash", etag)
                self.send_header("X-Xet-Refresh-Route", f"{hub.url}/token")

        def _send(self, file: str, *, body: bool) -> None:
            data, hole = hub.files[file], hub.holes.get(file, 0)
            start = 0
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            if wanted and not hub.ignores_range:
                start = int(wanted[1]) - hole
                self.send_response(206)
                total = hole + len(data)
                self.send_header("Content-Range", f"bytes {start + hole}-{total - 1}/{total}")
            else:
                self.send_response(200)
            self._describe(file)
            self.send_header("Content-Length", str(len(data) - start if body else hole + len(data)))
            self.end_headers()
            if not body:
                return
            end = len(data) if hub.cut_after_bytes is None else start + hub.cut_after_bytes
            hold = None if hub.hold_after_bytes is None else start + hub.hold_after_bytes
            counted = 0
            try:
                if hold is not None and hold < end:
                    self.wfile.write(data[start:hold])
                    self.wfile.flush()
                    hub.held.set()
                    hub.go_on.wait(60)
                    start = hold
                counted = len(data[start:end])
                hub.sent_bytes += counted  # before a client that has all of it can ask
                self.wfile.write(data[start:end])
            except ConnectionError:  # the client was killed: that is what the test wants
                hub.sent_bytes -= counted
                self.close_connection = True
                return
            if end < len(data):
                self.close_connection = True

    return Handler


def stand_ins_of(profile: str, tiny: Path) -> dict[str, bytes]:
    """Every model of a profile as a tiny random one of the same architecture; targets and drafts differ."""
    roles = tomllib.loads((ROOT / "suites/profiles.toml").read_text(encoding="utf-8"))[profile]["roles"]
    files = {}
    for role, model in roles.items():
        source = "qwen35-noise003.gguf" if role.startswith("draft") else "qwen35.gguf"
        files[f"{model}.gguf"] = (tiny / source).read_bytes() + model.encode()  # one hash for each
    return files


def write_own_entry(home: Path) -> None:
    """A manifest of a user's own with one model of the server's, `mine`."""
    home.mkdir(parents=True, exist_ok=True)
    entry = f'[models.mine]\nsource = "huggingface"\nrepo = "{REPO}"\nfile = "model.gguf"\nname = "mine"\n'
    (home / "gguf_manifest.toml").write_text(entry + 'architecture = "llama"\nquantization = "unknown"\n')


def write_manifest(hub: HubServer, path: Path) -> None:
    """The manifest of this checkout with the same ids, but of the files that the server has."""
    known = tomllib.loads((ROOT / "gguf_manifest.toml").read_text(encoding="utf-8"))["models"]
    lines = []
    for model, entry in known.items():
        if data := hub.files.get(f"{model}.gguf"):
            entry = {
                **{key: entry[key] for key in ("name", "architecture", "quantization", "source")},
                "repo": REPO,
                "file": f"{model}.gguf",
                "bytes": len(data),
                "sha256": hub.sha256(f"{model}.gguf"),
            }
        elif entry["source"] not in ("asset", "package"):
            continue
        lines.append(f'[models."{model}"]')
        lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
    path.write_text("\n".join(lines), encoding="utf-8")

"""The one door to httpx2: requests to one server, its answers bounded and parsed, its failures as ServerError."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import msgspec

from mlsd.clock import MonotonicClock
from mlsd.errors import InputError, ServerError
from mlsd.outside import excerpt, parse
from mlsd.redact import redact

Tell = Callable[[str], None]
Tree = dict[str, Any]  # JSON, read by paths that say what stands there: `programs.read`

CLOCK = MonotonicClock()  # of whoever asks a server
KEY_VARIABLE = "MLSD_SERVER_KEY"
_EXAMPLE = (
    "Give one like http://127.0.0.1:8080. Ports by default: llama-server 9931 (8080 before b11524), "
    "mlx_lm.server 8080, Ollama 11434, LM Studio 1234."
)
_LOADING, _UNKNOWN, _NO_ENTRY = 503, (404, 405, 501), (401, 403)
_CONNECT_S, _POLL_S, _TELL_S, _SHOWN = 5.0, 0.2, 10.0, 300
_ANSWER_S, _TOKEN_S = 3_600.0, 60.0  # the most for one answer, and between two tokens of a stream
_EVENT_BYTES, _PAGE_BYTES, _STREAM_BYTES = 4 << 20, 16 << 20, 32 << 20  # the most of one event, answer and stream
_NO_ERROR: tuple[Any, ...] = (None, "", {}, [], False)


def is_loopback(host: str) -> bool:
    """Whether nothing sent to a host leaves this machine; a name other than localhost may lead anywhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(url: str, remote: bool = False) -> str:
    """The URL without its trailing slash, and without the ``/v1`` under which OpenAI's paths lie.

    Raises: InputError for one that holds a key, or that lies beyond this machine without `remote`.
    """
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise InputError(f"This is no URL: {error}.", hint=_EXAMPLE) from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise InputError(f"{url!r} is no URL of a server.", hint=_EXAMPLE)
    if parts.userinfo or parts.query or parts.fragment:
        raise InputError(
            "A URL must hold no user, password or key: what is measured is stored.",
            hint=f"Give the address alone, and a key in the variable {KEY_VARIABLE}.",
        )
    if not remote and not is_loopback(parts.host):
        raise InputError(
            f"{parts.host} is not this machine: prompts would leave it, and the network would be timed with the model.",
            hint="Say --remote if that is what you want.",
        )
    return str(parts).rstrip("/").removesuffix("/v1").rstrip("/")


class _Deadline:
    """Until when an answer must have gone on; then its socket is shut, whatever the server still sends.

    httpx2 bounds each read alone: a byte a second, or `100 Continue` again and again, would hold it for ever.
    """

    def __init__(self, url: str, patience_s: float, tell: Tell | None) -> None:
        self._url, self._patience_s, self._tell = url, patience_s, tell
        self._began = self._sign = time.monotonic()
        self._over, self._socket = threading.Event(), None
        self.error: ServerError | None = None  # once there is no time left

    def opened(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpx2 on its way to an answer."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")

    def token(self, patience_s: float) -> None:
        """Output arrived; the next has to within so many seconds."""
        self._sign, self._patience_s, self._tell = time.monotonic(), patience_s, None

    def _watch(self) -> None:
        told = self._began
        while not self._over.wait(_POLL_S):
            left_s = min(self._sign + self._patience_s, self._began + _ANSWER_S) - time.monotonic()
            if self.error is None and left_s <= 0:
                late = time.monotonic() - self._began >= _ANSWER_S
                what = f"not ended in {_ANSWER_S:g} s" if late else f"sent nothing of use for {self._patience_s:g} s"
                self.error = ServerError(f"{self._url} has {what}.", hint="Give a longer --patience, or look at it.")
            if self.error is not None and self._socket is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            elif self._tell is not None and time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                with suppress(Exception):  # whoever listened may be gone, and the deadline holds
                    self._tell(f"Waiting for {self._url}, for {left_s:.0f} s more.")

    def __enter__(self) -> _Deadline:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


class Connection:
    """Requests to one server, each on a socket of its own; `patience_s` is how long it may say nothing of use.

    `tell` says what is waited for, where it takes long.
    """

    def __init__(self, url: str, patience_s: float, tell: Tell | None = None) -> None:
        self.url, self._patience_s, self._tell = url, patience_s, tell
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError(f"{KEY_VARIABLE} holds characters that no key can have.")
        self._given_up: ServerError | None = None
        # Proxies of the environment would stand between us and a server on this machine.
        self._client = httpx2.Client(
            base_url=url,
            # What is packed may unfold to anything; on the way to this machine packing gains nothing.
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx2.Timeout(None, connect=min(_CONNECT_S, patience_s)),
            verify=url.startswith("https"),  # else reading all authorities of the system is for nothing
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    def get(self, path: str) -> bytes:
        """A page about the server; empty where there is none. Raises: ServerError, also where a key is missing."""
        with self._open("GET", path, None, self._patience_s) as (response, deadline):
            body = b"".join(self._chunks(response, deadline, _PAGE_BYTES))
        if response.is_success or response.status_code in _NO_ENTRY:
            self._check(response, body)
        return body if response.is_success else b""

    def post(self, path: str, value: Tree) -> Tree:
        """The answer. Raises: ServerError, also where the server has no such page."""
        with self._open("POST", path, value, self._patience_s) as (response, deadline):
            body = b"".join(self._chunks(response, deadline, _PAGE_BYTES))
        if response.status_code in _UNKNOWN:
            raise ServerError(f"{self.url} has no {path}.", hint="Is it the server you mean?")
        self._check(response, body)
        return self._parse(body, path)

    def stream(
        self, path: str, value: Tree, prefill_s: float, adds: Callable[[Tree], object]
    ) -> Iterator[tuple[int, Tree | None]]:
        """(clock in ns, event) of a stream, as it arrives, SSE or a value a line; the mark of its end, where there is
        one, is None. Only events that add to the output are signs of life; the first has at least `prefill_s`.

        Raises: ServerError for whatever goes wrong on the way.
        """
        with self._open("POST", path, value, max(prefill_s, self._patience_s)) as (response, deadline):
            if not response.is_success:
                self._check(response, b"".join(self._chunks(response, deadline, _PAGE_BYTES)))
            for now_ns, line in self._lines(response, deadline):
                data = line.removeprefix(b"data:").strip()
                if not data or line.startswith((b":", b"event:", b"id:", b"retry:")):
                    continue
                event = None if data == b"[DONE]" else self._parse(data, path)
                if event is not None and adds(event):
                    deadline.token(min(self._patience_s, _TOKEN_S))
                yield now_ns, event

    def _lines(self, response: httpx2.Response, deadline: _Deadline) -> Iterator[tuple[int, bytes]]:
        """Lines, each with the time at which its end arrived."""
        begun, now_ns = bytearray(), 0
        for chunk in self._chunks(response, deadline, _STREAM_BYTES):
            now_ns = CLOCK.now_ns()
            for part in chunk.splitlines(keepends=True):
                begun += part
                if len(begun) > _EVENT_BYTES:
                    raise ServerError(f"{self.url} sent an event of more than {_EVENT_BYTES:,} bytes.")
                if part.endswith((b"\n", b"\r")):
                    yield now_ns, bytes(begun)
                    begun.clear()
        if begun:
            yield now_ns, bytes(begun)

    def _chunks(self, response: httpx2.Response, deadline: _Deadline, most_bytes: int) -> Iterator[bytes]:
        packed = response.headers.get("Content-Encoding", "identity")
        if packed != "identity":
            raise ServerError(f"{self.url} compressed its answer ({packed[:40]!r}), which it was asked not to do.")
        n_bytes = 0
        for chunk in response.iter_raw():
            n_bytes += len(chunk)
            if n_bytes > most_bytes:
                raise ServerError(f"{self.url} sent more than {most_bytes:,} bytes for one answer.")
            if deadline.error is not None:  # many small pieces may all lie here already
                return
            yield chunk

    @contextmanager
    def _open(
        self, method: str, path: str, value: Tree | None, patience_s: float
    ) -> Iterator[tuple[httpx2.Response, _Deadline]]:
        """A response whose body is still to come, and its deadline; one that loads is asked again.

        A server that was silent once is given up: each further request would wait as long again.
        """
        if self._given_up is not None:
            raise self._given_up
        content = None if value is None else msgspec.json.encode(value)
        headers = {} if value is None else {"Content-Type": "application/json"}
        told = time.monotonic()
        loaded_by = told + self._patience_s
        while True:
            with _Deadline(self.url, patience_s, self._tell) as deadline:
                extensions = {"trace": deadline.opened}
                sent = self._client.stream(method, path, content=content, headers=headers, extensions=extensions)
                try:
                    with sent as response:
                        if response.status_code != _LOADING or time.monotonic() > loaded_by:
                            yield response, deadline
                            return
                except (httpx2.HTTPError, httpx2.StreamError) as error:
                    raise self._failure(error) from error
                finally:
                    if deadline.error is not None:
                        self._given_up = deadline.error
                        raise deadline.error
            time.sleep(_POLL_S)
            if self._tell is not None and time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                self._tell(f"Waiting for {self.url} to load, for {loaded_by - told:.0f} s more.")

    def _failure(self, error: Exception) -> ServerError:
        shown = redact(str(error))[:_SHOWN].strip()
        if isinstance(error, httpx2.ConnectError):
            return ServerError(f"No server answers at {self.url}: {shown}.", hint="Start it.")
        what = " broke off in the middle" if isinstance(error, httpx2.RemoteProtocolError) else ""
        return ServerError(f"{self.url}{what}: {shown or type(error).__name__}.")

    def _check(self, response: httpx2.Response, body: bytes) -> None:
        if response.is_success:
            return
        status = response.status_code
        what = "is still loading, or busy" if status == _LOADING else "refused"
        hint = f"Give its key in the variable {KEY_VARIABLE}." if status in _NO_ENTRY else ""
        raise ServerError(f"{self.url} {what} ({status}): {excerpt(body)}", hint=hint)

    def _parse(self, body: bytes, path: str) -> Tree:
        answer: Tree = parse(body, dict[str, Any], f"The answer of {self.url}{path}", ServerError)
        if (failure := answer.get("error")) not in _NO_ERROR:
            raise ServerError(f"{self.url} returned an error: {excerpt(msgspec.json.encode(failure))}.")
        return answer

    def close(self) -> None:
        self._client.close()

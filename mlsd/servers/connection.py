"""The one door to httpx2: requests to one server, its answers bounded and parsed, its failures as ServerError."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpcore2
import httpx2
import msgspec

from mlsd.clock import MonotonicClock
from mlsd.errors import InputError, ServerError
from mlsd.hosts import is_loopback
from mlsd.limits import ANSWER_S, EVENT_BYTES, PAGE_BYTES, STREAM_BYTES, TOKEN_S, Limit
from mlsd.outside import excerpt, has_field, parse
from mlsd.redact import redact
from mlsd.servers.protocols import Reply

T = TypeVar("T")
S = TypeVar("S", bound=Reply)

CLOCK = MonotonicClock()  # of whoever asks a server
KEY_VARIABLE = "MLSD_SERVER_KEY"
_LOADING = 503
_CONNECT_S, _POLL_S, _SHOWN = 5.0, 0.2, 300
_PROGRESS_BYTES = 1 << 16  # of a page: so much of it is a sign of life, a byte now and then is not
_HEAD_BYTES = 1 << 20  # of an answer before its body, and of what wraps its body


def check_url(url: str, remote: bool = False) -> str:
    """The URL without its trailing slash, and without the ``/v1`` under which OpenAI's paths lie.

    Raises: InputError for one that holds a key, or that lies beyond this machine without `remote`.
    """
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise InputError(f"This is no URL: {error}.", hint="Give one like http://127.0.0.1:8080.") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise InputError(f"{url!r} is no URL of a server.", hint="Give one like http://127.0.0.1:8080.")
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


class _Silent(ServerError):
    """A server that has no time left."""


class _Allowance:
    """What one answer may still take: bytes from the wire, seconds in all, and seconds without a sign of life."""

    def __init__(self, url: str, patience_s: float, most: Limit) -> None:
        self._url, self._patience_s, self._most = url, patience_s, most
        self._bytes, self._since_sign = 0, 0
        self._began = self._sign = time.monotonic()

    def left_s(self) -> float:
        """Seconds until the next byte has to be there. Raises: ServerError when none are left."""
        now = time.monotonic()
        left = min(self._sign + self._patience_s, self._began + ANSWER_S.most) - now
        if left <= 0:
            raise self.late()
        return left

    def late(self) -> _Silent:
        """Why there is no time left."""
        if time.monotonic() - self._began >= ANSWER_S.most:
            return _Silent(f"{self._url} has taken {ANSWER_S.words}.", hint=ANSWER_S.hint)
        silence = f"sent {self._since_sign:,} bytes that say nothing" if self._since_sign else "sent nothing"
        return _Silent(
            f"{self._url} {silence} for {self._patience_s:g} s.", hint="Give a longer --patience, or look at it."
        )

    def received(self, n_bytes: int) -> None:
        """Count bytes. Raises: ServerError when they are too many."""
        self._bytes += n_bytes
        self._since_sign += n_bytes
        if self._bytes > self._most.most + _HEAD_BYTES:
            raise too_much(self._url, self._most)

    def page_goes_on(self) -> None:
        """Let the bytes since the last sign of life be one, if they are enough."""
        if self._since_sign >= _PROGRESS_BYTES:
            self.sign()

    def token(self, patience_s: float) -> None:
        self._patience_s = min(patience_s, TOKEN_S.most)
        self.sign()

    def sign(self) -> None:
        self._sign, self._since_sign = time.monotonic(), 0


def too_much(url: str, limit: Limit) -> ServerError:
    """A server that sent more than a limit."""
    return ServerError(f"{url} sent more than {limit.words}.", hint=limit.hint)


class _Metered(httpcore2.NetworkStream):
    """A socket whose reads and writes keep to the allowance of the answer that this thread waits for.

    httpx2 bounds each read alone: a byte a second, or `100 Continue` again and again, would hold it for ever.
    """

    def __init__(self, stream: httpcore2.NetworkStream, now: threading.local) -> None:
        self._stream, self._now = stream, now

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        allowance: _Allowance = self._now.allowance
        data = self._stream.read(max_bytes, allowance.left_s())
        allowance.received(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PROGRESS_BYTES):
            self._stream.write(buffer[start : start + _PROGRESS_BYTES], self._now.allowance.left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, *arguments: Any, **settings: Any) -> httpcore2.NetworkStream:
        return _Metered(self._stream.start_tls(*arguments, **settings), self._now)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Network(httpcore2.SyncBackend):
    """TCP with metered sockets."""

    def __init__(self, now: threading.local) -> None:
        self._now = now

    def connect_tcp(self, *arguments: Any, **settings: Any) -> httpcore2.NetworkStream:
        return _Metered(super().connect_tcp(*arguments, **settings), self._now)


class Connection:
    """Requests to one server; `patience_s` is how long it may say nothing of use."""

    def __init__(self, url: str, patience_s: float) -> None:
        self.url, self._patience_s = url, patience_s
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError(f"{KEY_VARIABLE} holds characters that no key can have.")
        self._now = threading.local()
        self._given_up: ServerError | None = None
        # Proxies of the environment would stand between us and a server on this machine.
        secure = url.startswith("https")  # else reading all authorities of the system is for nothing
        transport = httpx2.HTTPTransport(verify=secure, trust_env=False)
        transport._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(verify=secure, trust_env=False),
            max_connections=None,
            max_keepalive_connections=64,
            network_backend=_Network(self._now),
        )
        self._client = httpx2.Client(
            base_url=url,
            # What is packed may unfold to anything; on the way to this machine packing gains nothing.
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx2.Timeout(patience_s, connect=min(_CONNECT_S, patience_s)),
            transport=transport,
            trust_env=False,
        )

    def get(self, path: str, kind: type[T], mark: str) -> T | None:
        """A page as a record; None where there is none, or one of another kind: without the field `mark`.

        Raises: ServerError where it is of that kind and does not fit.
        """
        body = self._page("GET", path)
        return None if body is None or not has_field(body, mark) else self._parse(body, kind, path)

    def get_text(self, path: str) -> str | None:
        """A page as text; None where the server has no such page."""
        body = self._page("GET", path)
        return None if body is None else redact(body.decode("utf-8", "replace"))

    def post(self, path: str, value: Any, kind: type[S]) -> S:
        """The answer. Raises: ServerError, also where the server has no such page."""
        body = self._page("POST", path, value)
        if body is None:
            raise ServerError(f"{self.url} has no {path}.", hint="Is it the server you mean?")
        return self._checked(self._parse(body, kind, path))

    def _page(self, method: str, path: str, value: Any = None) -> bytes | None:
        with self._open(method, path, value, PAGE_BYTES) as response:
            body = self._whole(response)
        if response.status_code in (404, 405, 501) or (method == "GET" and not response.is_success):
            return None
        self._check(response, body)
        return body

    def stream(
        self, path: str, value: Any, kind: type[S], adds: Callable[[S], object], prefill_s: float = 0.0
    ) -> Iterator[tuple[int, S | None]]:
        """(clock in ns, event) of a stream, as it arrives, SSE or a value a line; the mark of its end, where there is
        one, is None. Only events that `add` to the output are signs of life; the first has at least `prefill_s`.

        Raises: ServerError for whatever goes wrong on the way.
        """
        with self._open("POST", path, value, STREAM_BYTES, max(prefill_s, self._patience_s)) as response:
            if not response.is_success:
                self._check(response, self._whole(response))
            for now_ns, line in self._lines(response):
                data = line.removeprefix(b"data:").strip()
                if not data or line.startswith((b":", b"event:", b"id:", b"retry:")):
                    continue
                if data == b"[DONE]":
                    yield now_ns, None
                    continue
                event = self._checked(self._parse(data, kind, path))
                if adds(event):
                    self._now.allowance.token(self._patience_s)
                yield now_ns, event

    def _lines(self, response: httpx2.Response) -> Iterator[tuple[int, bytes]]:
        """Lines, each with the time at which its end arrived."""
        begun = bytearray()
        for chunk in self._chunks(response):
            now_ns = CLOCK.now_ns()
            for part in chunk.splitlines(keepends=True):
                begun += part
                if len(begun) > EVENT_BYTES.most:
                    raise too_much(self.url, EVENT_BYTES)
                if part.endswith((b"\n", b"\r")):
                    yield now_ns, bytes(begun)
                    begun.clear()
        if begun:
            yield CLOCK.now_ns(), bytes(begun)

    def _whole(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        for chunk in self._chunks(response):
            body += chunk
            self._now.allowance.page_goes_on()
        if len(body) > PAGE_BYTES.most:
            raise too_much(self.url, PAGE_BYTES)
        return bytes(body)

    def _chunks(self, response: httpx2.Response) -> Iterable[bytes]:
        packed = response.headers.get("Content-Encoding", "identity")
        if packed != "identity":
            raise ServerError(f"{self.url} compressed its answer ({packed[:40]!r}), which it was asked not to do.")
        for chunk in response.iter_raw():
            self._now.allowance.left_s()  # many small pieces may all lie here already
            yield chunk

    @contextmanager
    def _open(
        self, method: str, path: str, value: Any, most: Limit, patience_s: float = 0.0
    ) -> Iterator[httpx2.Response]:
        """A response whose body is still to come; what the server closed while it was idle is opened once more.

        A server that was silent once is given up: each further request would wait as long again.
        """
        if self._given_up is not None:
            raise self._given_up
        content = None if value is None else msgspec.json.encode(value)
        headers = {} if value is None else {"Content-Type": "application/json"}
        request = self._client.build_request(method, path, content=content, headers=headers)
        deadline = time.monotonic() + self._patience_s
        fresh = False
        with self._failures():
            while True:
                self._now.allowance = _Allowance(self.url, patience_s or self._patience_s, most)
                try:
                    response = self._client.send(request, stream=True)
                except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
                    if fresh:
                        raise
                    fresh = True  # keep-alive: the server may have closed it while it was idle
                    continue
                self._now.allowance.sign()
                if response.status_code != _LOADING or time.monotonic() > deadline:
                    break
                response.close()
                time.sleep(_POLL_S)
            try:
                yield response
            finally:
                response.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except _Silent as error:
            self._given_up = error
            raise
        except httpx2.ConnectError as error:
            raise ServerError(f"No server answers at {self.url}: {_shown(error)}.", hint="Start it.") from error
        except httpx2.TimeoutException as error:
            self._given_up = self._now.allowance.late()
            raise self._given_up from error
        except httpx2.RemoteProtocolError as error:
            raise ServerError(f"{self.url} broke off in the middle: {_shown(error)}.") from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise ServerError(f"{self.url}: {_shown(error) or type(error).__name__}.") from error

    def _check(self, response: httpx2.Response, body: bytes) -> None:
        if response.is_success:
            return
        what = "is still loading, or busy" if response.status_code == _LOADING else "refused"
        raise ServerError(f"{self.url} {what} ({response.status_code}): {excerpt(body)}")

    def _checked(self, answer: S) -> S:
        if (failure := answer.failure) is not None:
            raise ServerError(f"{self.url} returned an error: {failure}.")
        return answer

    def _parse(self, body: bytes, kind: type[T], path: str) -> T:
        return parse(body, kind, f"The answer of {self.url}{path}", ServerError)

    def close(self) -> None:
        self._client.close()


def _shown(error: Exception) -> str:
    return redact(str(error))[:_SHOWN].strip()

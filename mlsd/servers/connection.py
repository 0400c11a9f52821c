"""The one door to httpx2: requests to one server, its answers bounded and parsed, its failures as ServerError."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx2
import msgspec

from mlsd.clock import MonotonicClock
from mlsd.errors import InputError, ServerError
from mlsd.outside import excerpt, parse
from mlsd.redact import redact

Tell = Callable[[str], None]
Tree = dict[str, Any]  # JSON, read by paths that say what stands there: `programs.read_value`

CLOCK = MonotonicClock()  # of whoever asks a server
KEY_VARIABLE = "MLSD_SERVER_KEY"
START = "Start it."  # what to do where no server answers
_EXAMPLE = (
    "Give one like http://127.0.0.1:8080. Ports by default: llama-server 9931 (8080 before b11524), "
    "mlx_lm.server 8080, Ollama 11434, LM Studio 1234."
)
_REFUSED, _LOADING, _UNKNOWN, _NO_ENTRY = 300, 503, (404, 405, 501), (401, 403)
_CONNECT_S, _POLL_S, _TELL_S, _SHOWN = 5.0, 0.2, 10.0, 300
_ANSWER_S, _TOKEN_S = 3_600.0, 60.0  # the most for one answer, and between two tokens of a stream
_EVENT_BYTES, _ANSWER_BYTES = 4 << 20, 32 << 20  # the most of one event, and of one answer
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


@functools.cache
def _waiting_loop() -> asyncio.AbstractEventLoop:
    """In a thread of its own: the caller's may run a loop, as a notebook does."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class Connection:
    """Requests to one server, each on a socket of its own; `patience_s` is how long it may say nothing of use.

    `tell` says what is waited for, where it takes long. An event loop bounds an answer as a whole: a bound of each read
    alone would let a byte a second, or `100 Continue` again and again, go on for ever.
    """

    def __init__(self, url: str, patience_s: float, tell: Tell | None = None) -> None:
        self.url, self._patience_s, self._tell = url, patience_s, tell or (lambda line: None)
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError(f"{KEY_VARIABLE} holds characters that no key can have.")
        self._given_up: ServerError | None = None
        self._client = httpx2.AsyncClient(
            base_url=url,
            # What is packed may unfold to anything; on the way to this machine packing gains nothing.
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx2.Timeout(None, connect=min(_CONNECT_S, patience_s)),
            verify=url.startswith("https"),  # else reading all authorities of the system is for nothing
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,  # its proxies would stand between us and a server on this machine
        )
        self._loop = _waiting_loop()

    def get(self, path: str) -> bytes:
        """A page about the server; empty where there is none. Raises: ServerError, also where a key is missing."""
        status, body = self._ask("GET", path)
        if status in _NO_ENTRY:
            self._check(status, body)
        return body if status < _REFUSED else b""

    def post(self, path: str, value: Tree) -> Tree:
        """The answer. Raises: ServerError, also where the server has no such page."""
        status, body = self._ask("POST", path, value)
        if status in _UNKNOWN:
            raise ServerError(f"{self.url} has no {path}.", hint="Is it the server you mean?")
        self._check(status, body)
        return self._parse(body, path)

    def stream(
        self, path: str, value: Tree, prefill_s: float, most_events: int, adds: Callable[[Tree], object]
    ) -> list[tuple[int, Tree | None]]:
        """(clock in ns, event) of a stream, SSE or a value a line; the mark of its end, where there is one, is None.

        Only events that add to the output are signs of life; the first has at least `prefill_s`. Raises: ServerError
        for whatever goes wrong on the way.
        """
        events, begun = list[tuple[int, Tree | None]](), bytearray()

        def take(now_ns: int, chunk: bytes) -> bool:
            n_before = len(events)
            for part in chunk.splitlines(keepends=True):
                begun.extend(part)
                if len(begun) > _EVENT_BYTES:
                    raise ServerError(f"{self.url} sent an event of more than {_EVENT_BYTES:,} bytes.")
                if part.endswith((b"\n", b"\r")):
                    line = bytes(begun)
                    begun.clear()
                    data = line.removeprefix(b"data:").strip()
                    if data and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                        events.append((now_ns, None if data == b"[DONE]" else self._parse(data, path)))
            if len(events) > most_events:
                raise ServerError(f"{self.url} sent more than {most_events} events for one answer.")
            return any(event is not None and adds(event) for _, event in events[n_before:])

        status, body = self._ask("POST", path, value, max(prefill_s, self._patience_s), take)
        self._check(status, body)
        take(CLOCK.now_ns(), b"\n")  # where the last line has no end
        return events

    def _ask(
        self, method: str, path: str, value: Tree | None = None, wait_s: float = 0.0,
        take: Callable[[int, bytes], bool] | None = None,
    ) -> tuple[int, bytes]:  # fmt: skip
        """Status and body of an answer; of one that `take` takes piece by piece nothing.

        A server that was silent once is given up: each further request would wait as long again.
        """
        if self._given_up is not None:
            raise self._given_up
        answer = self._loaded(method, path, value, wait_s or self._patience_s, take)
        future, asked = asyncio.run_coroutine_threadsafe(answer, self._loop), time.monotonic()
        while True:
            try:
                return future.result(_TELL_S)
            except TimeoutError:
                with suppress(Exception):  # whoever listened may be gone, and the deadline holds
                    self._tell(f"Waiting for {self.url}, for {time.monotonic() - asked:.0f} s so far.")
            except (httpx2.HTTPError, httpx2.StreamError) as error:
                raise self._failure(error) from error

    async def _loaded(
        self, method: str, path: str, value: Tree | None, wait_s: float, take: Callable[[int, bytes], bool] | None
    ) -> tuple[int, bytes]:
        """The answer of a server that may have to load first; it is asked again until it has."""
        loaded_by = self._loop.time() + self._patience_s
        while True:
            status, body = await self._exchange(method, path, value, wait_s, take)
            if status != _LOADING or self._loop.time() > loaded_by:
                return status, body
            await asyncio.sleep(_POLL_S)

    async def _exchange(
        self, method: str, path: str, value: Tree | None, wait_s: float, take: Callable[[int, bytes], bool] | None
    ) -> tuple[int, bytes]:
        body, ends = bytearray(), self._loop.time() + _ANSWER_S
        try:
            async with (
                asyncio.timeout_at(min(self._loop.time() + wait_s, ends)) as deadline,
                self._client.stream(method, path, json=value) as response,
            ):
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise ServerError(f"{self.url} compressed its answer, which it was asked not to do.")
                async for chunk in response.aiter_raw():
                    now_ns = CLOCK.now_ns()
                    if response.num_bytes_downloaded > _ANSWER_BYTES:
                        raise ServerError(f"{self.url} sent more than {_ANSWER_BYTES:,} bytes for one answer.")
                    if take is None or not response.is_success:
                        body += chunk
                    elif take(now_ns, chunk):
                        wait_s = min(self._patience_s, _TOKEN_S)
                        deadline.reschedule(min(self._loop.time() + wait_s, ends))
                return response.status_code, bytes(body)
        except TimeoutError:
            is_over = self._loop.time() >= ends
            what = f"not ended in {_ANSWER_S:g} s" if is_over else f"sent nothing of use for {wait_s:g} s"
            self._given_up = ServerError(f"{self.url} has {what}.", hint="Give a longer --patience, or look at it.")
            raise self._given_up from None

    def _failure(self, error: Exception) -> ServerError:
        shown = redact(str(error))[:_SHOWN].strip()
        if isinstance(error, httpx2.ConnectError):
            return ServerError(f"No server answers at {self.url}: {shown}.", hint=START)
        what = " broke off in the middle" if isinstance(error, httpx2.RemoteProtocolError) else ""
        return ServerError(f"{self.url}{what}: {shown or type(error).__name__}.")

    def _check(self, status: int, body: bytes) -> None:
        if status < _REFUSED:
            return
        what = "is still loading, or busy" if status == _LOADING else "refused"
        hint = f"Give its key in the variable {KEY_VARIABLE}." if status in _NO_ENTRY else ""
        raise ServerError(f"{self.url} {what} ({status}): {excerpt(body)}", hint=hint)

    def _parse(self, body: bytes, path: str) -> Tree:
        answer: Tree = parse(body, dict[str, Any], f"The answer of {self.url}{path}", ServerError)
        if (failure := answer.get("error")) not in _NO_ERROR:
            raise ServerError(f"{self.url} returned an error: {excerpt(msgspec.json.encode(failure))}.")
        return answer

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result()

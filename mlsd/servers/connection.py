"""The one door to httpx: requests to one server, its failures as ServerError, and keys that never leave the process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

from mlsd.clock import MonotonicClock
from mlsd.errors import InputError, ServerError
from mlsd.hosts import is_loopback

CLOCK = MonotonicClock()  # of whoever asks a server
KEY_VARIABLE = "MLSD_SERVER_KEY"
_LOADING = 503
_CONNECT_S, _POLL_S, _BODY_SHOWN = 5.0, 0.2, 300


def check_url(url: str, remote: bool = False) -> str:
    """The URL without its trailing slash.

    Raises: InputError for one that holds a key, or that lies beyond this machine without `remote`.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
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
    return str(parts).rstrip("/")


class Connection:
    """Requests to one server; `patience_s` is how long it may say nothing."""

    def __init__(self, url: str, patience_s: float) -> None:
        self.url, self._patience_s = url, patience_s
        self._key = os.environ.get(KEY_VARIABLE, "")
        # Proxies of the environment would stand between us and a server on this machine.
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(patience_s, connect=min(_CONNECT_S, patience_s)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )

    def get(self, path: str) -> Any:
        """A JSON value; None where the server has no such page, or another kind of one."""
        body = self._text("GET", path)
        try:
            return None if body is None else msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def get_text(self, path: str) -> str | None:
        """A page as text; None where the server has no such page."""
        body = self._text("GET", path)
        return None if body is None else body.decode("utf-8", "replace")

    def post(self, path: str, value: Any) -> Any:
        """The JSON answer. Raises: ServerError, also where the server has no such page."""
        body = self._text("POST", path, value)
        if body is None:
            raise ServerError(f"{self.url} has no {path}.", hint="Is it the server you mean?")
        return self._json(body)

    def _text(self, method: str, path: str, value: Any = None) -> bytes | None:
        with self._failures(), self._open(method, path, value) as response:
            body = response.read()
        if response.status_code in (404, 405, 501) or (method == "GET" and not response.is_success):
            return None
        self._check(response, body)
        return body

    def stream(self, path: str, value: Any) -> Iterator[tuple[int, Any]]:
        """(clock in ns, value) of each event of a stream, as it arrives, SSE or a value a line; the mark of its end,
        where there is one, is None.

        Raises: ServerError for whatever goes wrong on the way.
        """
        with self._failures(), self._open("POST", path, value) as response:
            if not response.is_success:
                self._check(response, response.read())
            for line in response.iter_lines():
                now_ns = CLOCK.now_ns()
                data = line.removeprefix("data:").strip()
                if not data or line.startswith((":", "event:", "id:", "retry:")):
                    continue
                if data == "[DONE]":
                    yield now_ns, None
                    continue
                event = self._json(data.encode())
                if isinstance(event, dict) and event.get("error"):
                    raise ServerError(f"The server broke off: {self._shown(event['error'])}.")
                yield now_ns, event

    @contextmanager
    def _open(self, method: str, path: str, value: Any) -> Iterator[httpx.Response]:
        """A response whose body is still to come; a connection that the server had closed meanwhile is opened anew."""
        content = None if value is None else msgspec.json.encode(value)
        headers = {} if value is None else {"Content-Type": "application/json"}
        request = self._client.build_request(method, path, content=content, headers=headers)
        deadline = time.monotonic() + self._patience_s
        fresh = False
        while True:
            try:
                response = self._client.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if fresh:
                    raise
                fresh = True  # keep-alive: the server may have closed it while it was idle
                continue
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
        """Every failure of httpx in our own words."""
        try:
            yield
        except httpx.ConnectError as error:
            raise ServerError(f"No server answers at {self.url}: {self._shown(error)}.", hint="Start it.") from error
        except httpx.TimeoutException as error:
            raise ServerError(
                f"{self.url} said nothing for {self._patience_s:g} s.", hint="Give a longer --patience, or look at it."
            ) from error
        except httpx.RemoteProtocolError as error:
            raise ServerError(f"{self.url} broke off in the middle: {self._shown(error)}.") from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise ServerError(f"{self.url}: {self._shown(error) or type(error).__name__}.") from error

    def _check(self, response: httpx.Response, body: bytes) -> None:
        if response.is_success:
            return
        what = "is still loading, or busy" if response.status_code == _LOADING else "refused"
        raise ServerError(f"{self.url} {what} ({response.status_code}): {self._shown(body.decode('utf-8', 'replace'))}")

    def _json(self, body: bytes) -> Any:
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = self._shown(body.decode("utf-8", "replace"))
            raise ServerError(f"{self.url} said what is no JSON: {said!r}.") from error

    def _shown(self, said: object) -> str:
        """What a server said, short, and without the key if it repeats it."""
        return self.redact(str(said))[:_BODY_SHOWN].strip()

    def redact(self, text: str) -> str:
        """A text without the key."""
        return text.replace(self._key, "***") if self._key else text

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

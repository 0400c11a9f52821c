"""A real HTTP proxy between client and server that does one thing wrong."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Event = dict[str, Any]


class Fault:
    """Nothing wrong; subclasses change what they are about."""

    def body(self, path: str, body: Event) -> Event:
        """What the server is asked, in place of what was asked."""
        return body

    def event(self, event: Event) -> Event:
        """What the client hears, in place of what the server said."""
        return event

    def before(self, path: str) -> tuple[int, bytes] | None:
        """An answer that the server never sees."""
        return None

    def begins(self) -> None:
        """A stream begins."""

    def goes_on(self, n_events: int) -> bool:
        """Whether the stream goes on after so many events."""
        return True


class AltersTokens(Fault):
    """One token in so many is another one, whichever way tokens are told."""

    def __init__(self, every: int) -> None:
        self.every, self.n, self.altered = every, 0, 0

    def event(self, event: Event) -> Event:
        if event.get("tokens"):
            event["tokens"] = [self._token(token) for token in event["tokens"]]
        return event

    def _token(self, token: int) -> int:
        self.n += 1
        if self.n % self.every:
            return token
        self.altered += 1
        return token + 1


class DoublesAccepted(Fault):
    """Says that twice as many drafted tokens were accepted."""

    def event(self, event: Event) -> Event:
        timings = event.get("timings") or {}
        if "draft_n_accepted" in timings:
            timings["draft_n_accepted"] *= 2
        return event


class FastClock(Fault):
    """Says that everything took a tenth of the time."""

    def event(self, event: Event) -> Event:
        timings = event.get("timings") or {}
        for name in ("predicted_ms", "prompt_ms"):
            if name in timings:
                timings[name] /= 10
        return event


class HidesPages(DoublesAccepted):
    """The same, and no counters to compare with."""

    def before(self, path: str) -> tuple[int, bytes] | None:
        return (501, b'{"error": "no metrics"}') if path == "/metrics" else None


class Caches(Fault):
    """Answers a prompt that it has seen out of its memory; asks the server for the first only."""

    def __init__(self) -> None:
        self.known: dict[str, list[bytes]] = {}
        self.served = 0


class Stalls(Fault):
    """Falls silent in the middle of an answer."""

    def __init__(self, after: int, seconds: float) -> None:
        self.after, self.seconds = after, seconds

    def goes_on(self, n_events: int) -> bool:
        if n_events == self.after:
            time.sleep(self.seconds)
        return True


class Cuts(Fault):
    """Closes the connection in the middle of an answer."""

    def __init__(self, after: int) -> None:
        self.after = after

    def goes_on(self, n_events: int) -> bool:
        return n_events < self.after


class EndsEarly(Cuts):
    """Ends the stream properly, but without its last events."""


class Loads(Fault):
    """Is loading for so many requests."""

    def __init__(self, n: int) -> None:
        self.n = n

    def before(self, path: str) -> tuple[int, bytes] | None:
        self.n -= 1
        return (503, b'{"error": {"message": "Loading model", "code": 503}}') if self.n >= 0 else None


class Limits(Fault):
    """Lets no answer be longer than so many tokens."""

    def __init__(self, most: int) -> None:
        self.most = most

    def body(self, path: str, body: Event) -> Event:
        return {**body, "n_predict": min(self.most, body["n_predict"])} if "n_predict" in body else body


class AddsTemplate(Fault):
    """Puts something around every prompt."""

    def body(self, path: str, body: Event) -> Event:
        return {**body, "prompt": [*body["prompt"][:1], *body["prompt"]]} if "prompt" in body else body


class Refuses(Fault):
    """Refuses, and repeats the key it was given."""

    def before(self, path: str) -> tuple[int, bytes] | None:
        return (401, b'{"error": "bad key %KEY%"}') if path == "/completion" else None


class Proxy:
    """The proxy, listening inside the block; `url` is its own."""

    def __init__(self, upstream: str, fault: Fault) -> None:
        target, self.fault = urlsplit(upstream), fault
        self.connections: set[int] = set()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def setup(self) -> None:
                super().setup()
                proxy.connections.add(id(self))

            def do_GET(self) -> None:
                self._pass(None)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._pass(fault.body(self.path, body))

            def _pass(self, body: Event | None) -> None:
                own = fault.before(self.path)
                if own is not None:
                    key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                    self._send(own[0], own[1].replace(b"%KEY%", key.encode()))
                    return
                asked = body or {}
                name = json.dumps([asked.get("prompt"), asked.get("n_predict"), asked.get("stream")])
                if isinstance(fault, Caches) and self.path == "/completion" and name in fault.known:
                    fault.served += 1
                    self._stream(fault.known[name])
                    return
                with closing(http.client.HTTPConnection(target.hostname or "", target.port or 0, timeout=60)) as end:
                    self._forward(end, body, name)

            def _forward(self, connection: http.client.HTTPConnection, body: Event | None, name: str) -> None:
                content = None if body is None else json.dumps(body).encode()
                headers = {"Content-Type": "application/json"} if content else {}
                connection.request(self.command, self.path, content, headers)
                answer = connection.getresponse()
                if "event-stream" in (answer.getheader("Content-Type") or ""):
                    self._copy_stream(answer, name)
                else:
                    self._send(answer.status, _changed(answer.read(), fault.event), answer.getheader("Content-Type"))

            def _copy_stream(self, answer: http.client.HTTPResponse, name: str) -> None:
                kept: list[bytes] = []

                def lines() -> Iterator[bytes]:
                    while line := answer.readline():
                        if line.startswith(b"data:") and line[5:].strip().startswith(b"{"):
                            line = b"data: " + _changed(line[5:], fault.event) + b"\n"
                        kept.append(line)
                        yield line

                self._stream(lines())
                if isinstance(fault, Caches):
                    fault.known[name] = kept

            def _stream(self, lines: Iterable[bytes]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                fault.begins()
                n_events = 0
                for line in lines:
                    n_events += line.startswith(b"data:")
                    if not fault.goes_on(n_events):
                        if not isinstance(fault, EndsEarly):
                            self.close_connection = True
                            self.connection.close()
                            return
                        break
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def _send(self, status: int, content: bytes, kind: str | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind or "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # the client went away, as some tests want it to

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _changed(content: bytes, change: Callable[[Event], Event]) -> bytes:
    with suppress(ValueError):
        value = json.loads(content)
        if isinstance(value, dict):
            return json.dumps(change(value)).encode()
    return content

"""What asking a server costs: the client of `mlsd server` against a bare socket loop, 128 tokens at 100 tok/s."""

from __future__ import annotations

import json
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe

from benchmarks.harness import Result, interleaved, of_samples
from mlsd.servers.connection import Connection
from mlsd.servers.endpoint import Request
from mlsd.servers.llama_server import LlamaServer
from mlsd.servers.protocols import Props

N_TOKENS, TOK_S = 128, 100.0
REPEATS = 15


def _events() -> list[bytes]:
    """A stream as llama-server writes it, the final event last."""
    events = []
    for n in range(1, N_TOKENS + 1):
        timings = {"predicted_n": n, "predicted_ms": 10.0 * (n - 1), "prompt_ms": 1.0, "prompt_n": 4, "cache_n": 0}
        timings |= {"draft_n": 2 * n, "draft_n_accepted": n}
        event = {"index": 0, "content": "word ", "tokens": [n], "stop": False, "timings": timings}
        events.append(event)
    events.append({**event, "tokens": [], "content": "", "stop": True, "tokens_predicted": N_TOKENS})
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events]


def _serve(port_to: Pipe) -> None:
    """Answer every request with the stream, one event every 10 ms of an absolute clock."""
    events = _events()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port_to.send(listening.getsockname()[1])
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_talk, args=(connection, events), daemon=True).start()


def _talk(connection: socket.socket, events: list[bytes]) -> None:
    """Serve one connection as long as it lasts."""
    with connection, connection.makefile("rb") as asked:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (first := asked.readline()).strip():
            length = 0
            while (line := asked.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            asked.read(length)
            _answer(connection, events if b"POST" in first else [])


def _answer(connection: socket.socket, events: list[bytes]) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head if events else b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
    began = time.perf_counter()
    for n, event in enumerate(events, 1):
        time.sleep(max(0.0, began + min(n, N_TOKENS) / TOK_S - time.perf_counter()))
        connection.sendall(f"{len(event):x}\r\n".encode() + event + b"\r\n")
    if events:
        connection.sendall(b"0\r\n\r\n")


def run() -> Iterator[Result]:
    mine, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    port = mine.recv()
    connection = Connection(f"http://127.0.0.1:{port}", 30.0)
    endpoint = LlamaServer(connection, Props())
    request = Request(prompt=(1, 2, 3, 4), n_predict=N_TOKENS)

    def by_client() -> float:
        began, cpu = time.perf_counter(), time.process_time()
        answer = endpoint.settle(request, endpoint.complete(request))
        assert len(answer.tokens) == N_TOKENS
        cpu_s.append(time.process_time() - cpu)
        return time.perf_counter() - began

    def by_socket() -> float:
        body = json.dumps({"prompt": [1, 2, 3, 4], "stream": True}).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port)) as bare:
            bare.sendall(head + body)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received = received[-8:] + bare.recv(65536)
        return time.perf_counter() - began

    cpu_s: list[float] = []
    try:
        figures = interleaved({"socket": by_socket, "client": by_client}, REPEATS)
    finally:
        connection.close()
        server.kill()
        server.join()
    added = [100 * (a / b - 1) for a, b in zip(figures["client"], figures["socket"], strict=True)]
    yield of_samples("time added to 128 tokens at 100 tok/s", added, "%", at_most=1.0)
    yield of_samples("CPU time of the client a token", [1e6 * each / N_TOKENS for each in cpu_s], "us")

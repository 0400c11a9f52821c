"""Servers of every protocol: honest as long as nobody alters a page, an event or the bytes.

They answer at once with the same words, so they cost nothing; what they say of time is what passed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Send = Callable[[bytes], None]
PIECES = ("The", " sky", " is", " blue", ",", " and", " so")
DIALECTS = ("llama-server", "openai", "mlx", "mlx-vlm", "vllm", "ollama", "lm-studio")
MOST_S = 20.0  # a connection lives no longer, whatever an attack wants


class FakeServer:
    """Speaks one protocol inside the block; `value` alters what it says, `raw` takes over how it says it."""

    def __init__(
        self, dialect: str = "llama-server", *, draft: bool = False, token_s: float = 0.0, key: str = "none"
    ) -> None:
        self.dialect, self.draft, self.token_s, self.key = dialect, draft, token_s, key  # a key it echoes in its pages
        self.bos = ""  # goes in front of a text, where special tokens are asked for
        self.held = 0.0  # share of a stream that is held back, and then sent at once
        self.value: Callable[[str, Any], Any] = lambda path, value: value
        self.raw: Callable[[str, Send], bool] = lambda path, send: False  # whether it answered
        self.keys: set[str] = set()  # heard
        self.counts = {"predicted": 0, "proposed": 0, "accepted": 0, "drafts": 0}
        fake = self

        class Handler(BaseHTTPRequestHandler):  # of HTTP/1.0: each answer ends its connection
            timeout = MOST_S
            do_GET = do_POST = lambda handler: fake._serve(handler)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._ended = False

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._server.shutdown()
        self._server.socket.close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        ends = time.monotonic() + MOST_S

        def send(data: bytes) -> None:
            if self._ended or time.monotonic() > ends:
                raise OSError("enough")
            handler.connection.sendall(data)

        self.keys.add(handler.headers.get("Authorization", "").removeprefix("Bearer "))
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        with suppress(OSError, ValueError, LookupError):
            if not self.raw(handler.path, send):
                self._answer(handler.path, json.loads(body) if body else None, send)

    def _answer(self, path: str, sent: Any, send: Send) -> None:
        if path == "/metrics" and self.dialect in ("llama-server", "vllm"):
            whole(send, str(self.value(path, self._metrics())).encode(), {"Content-Type": "text/plain"})
        elif sent is None or not sent.get("stream", False):
            page = self._page(path, sent)
            value = encoded(self.value(path, page or {"error": "not found"}))
            whole(send, value, {"Content-Type": "application/json"}, 404 if page is None else 200)
        else:
            send(head({"Content-Type": "text/event-stream", "Connection": "close"}))
            n_held = round(self.held * (sent.get("max_tokens") or sent.get("n_predict") or 0))
            pieces = list[bytes]()
            for event in self._events(path, sent):
                reply = encoded(self.value(path, event))
                pieces.append(reply + b"\n" if self.dialect == "ollama" else b"data: " + reply + b"\n\n")
                if len(pieces) >= n_held:
                    send(b"".join(pieces))
                    n_held, pieces = 0, []
            if self.dialect not in ("llama-server", "ollama"):
                send(b"data: [DONE]\n\n")

    # --- pages ----------------------------------------------------------------------------------------------------

    def _page(self, path: str, sent: Any) -> Any:
        if sent is not None:
            return self._posted(path, sent)
        model = {"id": f"m-{self.key}", "object": "model", "owned_by": "somebody"}
        pages = {
            "llama-server": {
                "/props": {
                    "default_generation_settings": {"n_ctx": 2048}, "total_slots": 1, "build_info": f"b1-{self.key}",
                    "model_path": "/models/m.gguf", "model_alias": "m", "bos_token": self.bos or None,
                },
                "/v1/models": {"data": [{**model, "meta": {"n_vocab": 512, "n_params": 10**6}}]},
            },
            "openai": {"/v1/models": {"object": "list", "data": [model]}},
            "mlx": {"/health": {"status": "ok"}},
            "mlx-vlm": {"/health": {"status": "healthy", "loaded_model": model["id"]}, "/v1/models": {"data": [model]}},
            "vllm": {
                "/version": {"version": f"0.29.0 {self.key}"}, "/v1/models": {"data": [{**model, "owned_by": "vllm"}]},
            },
            "ollama": {
                "/api/version": {"version": f"0.31.1 {self.key}"},
                "/api/ps": {"models": [{"name": f"m {self.key}", "model": "m"}]},
            },
            "lm-studio": {"/api/v0/models": {"data": [{**model, "state": "loaded"}]}},
        }  # fmt: skip
        return pages[self.dialect].get(path)

    def _posted(self, path: str, sent: Any) -> Any:
        if path == "/tokenize":
            text = sent.get("content") or sent.get("prompt") or sent["messages"][-1]["content"]
            text = (self.bos if sent.get("add_special") else "") + text
            return {"tokens": [1 + byte for byte in text.encode()[:200]]}
        if path == "/completion":
            (*_, last) = self._events(path, sent)
            n, n_top = sent["n_predict"], min(sent.get("n_probs", 0), 5)
            tokens = _tokens(n, len(sent["prompt"]))
            tops = [[{"id": token + k, "logprob": -0.1 - 5 * k} for k in range(n_top)] for token in tokens if n_top]
            probabilities = [{"id": top[0]["id"], "logprob": -0.1, "top_logprobs": top} for top in tops]
            return {**last, "tokens": tokens, "content": _text(n), "completion_probabilities": probabilities}
        if self.dialect == "ollama":
            *_, last = self._events(path, sent)
            return {**last, "response": _text(sent["options"]["num_predict"])}
        n = sent["max_tokens"]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"content": _text(n)}} if "chat" in path else {"text": _text(n)}
        if self.dialect == "mlx":
            choice["logprobs"] = {"content": [{"id": token} for token in _tokens(n)]}
        if self.dialect == "vllm":
            choice["token_ids"] = _tokens(n)
        stats = {"total_draft_tokens_count": n, "accepted_draft_tokens_count": n // 2} if "draft_model" in sent else {}
        return {"choices": [choice], **self._last(sent), "stats": stats}

    def _last(self, sent: Any) -> dict[str, Any]:
        """What stands at the end of an answer, as each says it; a drafting server is right with one token a round."""
        n, n_prompt = sent["max_tokens"], len(sent.get("prompt", "")) if self.dialect == "vllm" else 5
        rounds = -(-(n - 1) // 2)
        accepted = n - 1 - rounds
        reply: dict[str, Any] = {"usage": {"prompt_tokens": n_prompt, "completion_tokens": n}}
        if self.dialect == "mlx-vlm":
            counts = {"draft_kind": "mtp", "draft_rounds": rounds, "draft_n": rounds, "draft_n_accepted": accepted}
            reply["timings"] = {"prompt_n": n_prompt, "predicted_n": n, **(counts if self.draft else {})}
        if self.dialect == "vllm":
            reply["usage"]["prompt_tokens_details"] = {"cached_tokens": 0}
            counts = {"num_spec_steps": rounds, "num_draft_tokens": rounds, "num_accepted_draft_tokens": accepted}
            counts |= {"acceptance_histogram": [rounds - accepted, accepted]}
            reply["metrics"] = {"speculative_decoding": counts if self.draft else None}
        return reply

    def _metrics(self) -> str:
        counts, by = self.counts, 'vllm:%s{engine="0"}' if self.dialect == "vllm" else "llamacpp:%s"
        lines = [f"{by % 'tokens_predicted_total'} {counts['predicted']}"] if self.dialect == "llama-server" else []
        if self.draft:
            names = {"num_draft_tokens": "proposed", "num_accepted_tokens": "accepted", "num_drafts": "drafts"}
            lines += [f"{by % f'spec_decode_{name}_total'} {counts[of]}" for name, of in names.items()]
        return "# HELP of nothing\n" + "\n".join(lines) + "\n"

    # --- streams --------------------------------------------------------------------------------------------------

    def _events(self, path: str, sent: Any) -> Iterator[Any]:
        if self.dialect == "llama-server":
            yield from self._llama(sent)
            return
        n = sent["options"]["num_predict"] if self.dialect == "ollama" else sent["max_tokens"]
        for i in range(n):
            time.sleep(self.token_s)
            word = PIECES[i % len(PIECES)]
            if self.dialect == "ollama":
                yield {"message": {"content": word}} if "chat" in path else {"response": word, "done": False}
            else:
                choice = {"delta": {"content": word}} if "chat" in path else {"text": word}
                yield {"choices": [choice | ({"token_ids": [7 + i % 9]} if self.dialect == "vllm" else {})]}
        if self.dialect == "ollama":
            yield {
                "response": "", "done": True, "done_reason": "length", "prompt_eval_count": 5,
                "prompt_eval_duration": 20_000, "eval_count": n, "eval_duration": 30_000 * n,
            }  # fmt: skip
        else:
            yield {"choices": [{"text": "", "finish_reason": "length"}], **self._last(sent)}
            if self.dialect == "vllm" and self.draft:
                reply = self._last(sent)["metrics"]["speculative_decoding"]
                self.counts["drafts"] += reply["num_spec_steps"]
                self.counts["proposed"] += reply["num_draft_tokens"]
                self.counts["accepted"] += reply["num_accepted_draft_tokens"]

    def _llama(self, sent: Any) -> Iterator[Any]:
        """A token an event; a drafting server proposes one token a round and every one is right."""
        n, began = sent["n_predict"], time.monotonic()
        self.counts["predicted"] += n
        prompt = sent["prompt"]
        timings: dict[str, Any] = {"prompt_n": len(prompt), "prompt_ms": 0.01, "predicted_n": 0, "predicted_ms": 0.0}
        for i in range(n):
            time.sleep(self.token_s / (2 if self.draft else 1))
            timings = {**timings, "predicted_n": i + 1, "predicted_ms": 1e3 * (time.monotonic() - began)}
            if self.draft and i:
                rounds = -(-i // 2)
                timings |= {"draft_n": rounds, "draft_n_accepted": i - rounds}
            yield {
                "content": PIECES[i % len(PIECES)],
                "tokens": [_tokens(n, len(prompt))[i]],
                "stop": False,
                "timings": timings,
            }
        self.counts["proposed"] += timings.get("draft_n", 0)
        self.counts["drafts"] += timings.get("draft_n", 0)
        self.counts["accepted"] += timings.get("draft_n_accepted", 0)
        yield {
            "content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": n,
            "tokens_evaluated": len(prompt), "timings": timings,
        }  # fmt: skip


def head(headers: dict[str, str], status: int = 200) -> bytes:
    """The beginning of an answer."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} What\r\n{lines}\r\n".encode()


def whole(send: Send, body: bytes, headers: dict[str, str], status: int = 200) -> None:
    """A whole answer."""
    send(head({**headers, "Content-Length": str(len(body))}, status) + body)


def encoded(value: Any) -> bytes:
    """JSON, or bytes as they are: what no encoder would write."""
    return value if isinstance(value, bytes) else json.dumps(value).encode("utf-8", "surrogatepass")


def _tokens(n: int, n_before: int = 0) -> list[int]:
    """A token follows from its place, so that a text goes on as it began."""
    return [7 + (n_before + i) % 9 for i in range(n)]


def _text(n: int) -> str:
    return "".join(PIECES[i % len(PIECES)] for i in range(n))


# --- answers without end -------------------------------------------------------------------------------------------


def again(data: bytes, every_s: float = 0.0) -> Callable[[Send], None]:
    """The same bytes for ever."""

    def sends(send: Send) -> None:
        while True:
            send(data)
            time.sleep(every_s)

    return sends


STREAM = head({"Content-Type": "text/event-stream"})
EVENT = b'data: {"content": "x", "tokens": [7], "stop": false}\n\n'


def after(begin: bytes, rest: Callable[[Send], None]) -> Callable[[Send], None]:
    def sends(send: Send) -> None:
        send(begin)
        rest(send)

    return sends


ENDLESS = {
    "events": after(STREAM, again(EVENT)),
    "an event now and then": after(STREAM, again(EVENT, 0.02)),
    "comments": after(STREAM, again(b": ping\n\n", 0.01)),
    "a flood of comments": after(STREAM, again(b": ping\n\n" * 1000)),
    "a line": after(STREAM, again(b"x" * 65_536)),
    "a body": after(head({"Content-Length": str(10**15)}), again(b" " * 65_536)),
    "bytes one by one": after(STREAM, again(b"x", 0.02)),
    "100 Continue": again(b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "a flood of 100 Continue": again(b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "headers": after(b"HTTP/1.1 200 OK\r\n", again(b"X-More: yes\r\n", 0.01)),
    "a header byte by byte": after(b"HTTP/1.1 200 OK\r\nX-Slow: ", again(b"x", 0.02)),
    "small pieces": after(head({"Transfer-Encoding": "chunked"}), again(b"1\r\n \r\n" * 1000)),
    "silence": lambda send: time.sleep(3),
}

"""Ollama and LM Studio from recorded exchanges: read as they were written, and said to be untested."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mlsd.errors import MlsdError
from mlsd.servers.dialects import connect
from mlsd.servers.endpoint import Request
from mlsd.servers.open import ServerRequest, serve
from mlsd.servers.results import rows
from tests.servers.asked import ONE_THREAD

Reply = tuple[str, list[Any]]

OLLAMA: dict[str, Any] = {
    "/api/version": {"version": "0.31.1"},
    "/api/ps": {"models": [{"name": "qwen3:4b", "model": "qwen3:4b", "size": 2620788260}]},
}
OLLAMA_LINES = [
    {"model": "qwen3:4b", "created_at": "2026-11-02T09:12:31.1Z", "response": "The", "done": False},
    {"model": "qwen3:4b", "created_at": "2026-11-02T09:12:31.2Z", "response": " sky is", "done": False},
    {
        "model": "qwen3:4b", "created_at": "2026-11-02T09:12:31.3Z", "response": "", "done": True,
        "done_reason": "length", "total_duration": 60000, "load_duration": 1000, "prompt_eval_count": 5,
        "prompt_eval_duration": 20000, "eval_count": 3, "eval_duration": 30000,
    },
]  # fmt: skip
LM_STUDIO: dict[str, Any] = {
    "/api/v0/models": {
        "object": "list",
        "data": [
            {"id": "qwen3-0.6b", "object": "model", "type": "llm", "state": "not-loaded"},
            {"id": "qwen3-4b", "object": "model", "type": "llm", "state": "loaded", "quantization": "Q4_K_M"},
        ],
    },
}
CHOICE = {"index": 0, "text": "The sky is", "logprobs": None, "finish_reason": "length"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
LM_STUDIO_STREAM = [
    {"object": "text_completion", "choices": [{"index": 0, "text": "The", "finish_reason": None}]},
    {"object": "text_completion", "choices": [{"index": 0, "text": " sky is", "finish_reason": None}]},
    {"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": USAGE},
]
LM_STUDIO_STATS = {"draft_model": "qwen3-0.6b", "total_draft_tokens_count": 4, "accepted_draft_tokens_count": 2}


@contextmanager
def replayed(pages: dict[str, Any], heard: list[dict[str, Any]], with_draft: bool = True) -> Iterator[str]:
    """A server that says again what was recorded; `heard` collects what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._send(200 if self.path in pages else 404, json.dumps(pages.get(self.path, {})))

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append({"path": self.path, **asked})
            if self.path.startswith("/api/v0"):
                stats = LM_STUDIO_STATS if "draft_model" in asked else {}
                whole = {"object": "text_completion", "choices": [CHOICE], "usage": USAGE, "stats": stats}
                events = [f"data: {json.dumps(event)}\n\n" for event in LM_STUDIO_STREAM]
                self._send(200, "".join([*events, "data: [DONE]\n\n"]) if asked["stream"] else json.dumps(whole))
            else:
                self._send(200, "".join(json.dumps(line) + "\n" for line in OLLAMA_LINES))

        def _send(self, status: int, content: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_ollama_is_read_and_its_drafting_switched_off_by_request() -> None:
    heard: list[dict[str, Any]] = []
    with replayed(OLLAMA, heard) as url:
        endpoint = connect(url, 5.0)
        for draft in (True, False):
            answer = endpoint.complete(Request(prompt="Why is the sky", n_predict=3, draft=draft))
        endpoint.close()
    assert (endpoint.server.program, endpoint.server.model, endpoint.server.untested) == ("Ollama", "qwen3:4b", True)
    assert (answer.text, answer.n_tokens, answer.n_prompt, answer.decode_ns) == ("The sky is", 3, 5, 30000)
    assert answer.first_ns is not None and answer.proposed is None
    assert "draft_num_predict" not in heard[0]["options"] and heard[1]["options"]["draft_num_predict"] == 0
    assert heard[0]["raw"] and heard[0]["options"]["temperature"] == 0


def test_ollama_puts_the_template_on_a_conversation_itself() -> None:
    heard: list[dict[str, Any]] = []
    with replayed(OLLAMA, heard) as url:
        endpoint = connect(url, 5.0)
        prompt = endpoint.chat(("Why?", "Because.", "Really?"))
        endpoint.complete(Request(prompt="", messages=prompt.messages, n_predict=3))
        endpoint.close()
    assert heard[0]["path"] == "/api/chat" and "raw" not in heard[0]
    assert [message["role"] for message in heard[0]["messages"]] == ["user", "assistant", "user"]


def test_lm_studio_drafts_with_the_model_that_a_request_names() -> None:
    heard: list[dict[str, Any]] = []
    with replayed(LM_STUDIO, heard) as url:
        endpoint = connect(url, 5.0, "qwen3-0.6b")
        answers = []
        for draft in (True, False):
            request = Request(prompt="Why is the sky", n_predict=3, draft=draft)
            answers.append(endpoint.settle(request, endpoint.complete(request)))
        endpoint.close()
    assert (endpoint.server.program, endpoint.server.model, endpoint.server.untested) == ("LM Studio", "qwen3-4b", True)
    assert [(a.proposed, a.accepted) for a in answers] == [(4, 2), (None, None)]
    assert ["draft_model" in one for one in heard] == [True, True, False, False]
    assert answers[0].n_tokens == 3


def test_one_server_that_switches_is_both_arms(tmp_path: Path) -> None:
    with replayed(OLLAMA, []) as url:
        request = ServerRequest(url=url, n_predict=3, repeats=2, engine=ONE_THREAD)
        result = serve(request, tmp_path / "s.sqlite")
    found = rows(result.trials, deterministic=result.deterministic)
    assert [row.name for row in found] == ["plain", "speculation"]
    notes = "\n".join(result.notes)
    assert "untested" in notes and "compared as text" in notes


def test_one_server_that_cannot_switch_is_refused(tmp_path: Path) -> None:
    pages = {"/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": "somebody"}]}}
    with replayed(pages, []) as url, pytest.raises(MlsdError, match="cannot leave drafting off"):
        serve(ServerRequest(url=url), tmp_path / "s.sqlite")


def test_a_server_without_a_model_or_a_protocol_is_one_message() -> None:
    with replayed({"/v1/models": {"data": []}}, []) as url, pytest.raises(MlsdError, match="no model loaded"):
        connect(url, 5.0)
    with replayed({}, []) as url, pytest.raises(MlsdError, match="no protocol that mlsd knows"):
        connect(url, 5.0)

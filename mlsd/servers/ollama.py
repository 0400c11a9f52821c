"""Ollama's own protocol, from recorded exchanges: a line a piece, its clock in the last; a request may not draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlsd.errors import ServerError
from mlsd.servers.connection import CLOCK, Connection
from mlsd.servers.endpoint import Answer, Counters, Prompt, Request, Server


class Ollama:
    """An endpoint with `/api/generate` and `/api/chat`."""

    def __init__(self, connection: Connection, model: Mapping[str, Any], version: str) -> None:
        self.url, self._connection, self._id = connection.url, connection, str(model.get("name") or model.get("model"))
        self.server = Server(
            program="Ollama", build=version, model=self._id, has_clock=True, switches=True, untested=True
        )

    def tokenize(self, text: str) -> tuple[int, ...]:
        """None: Ollama takes texts."""
        return ()

    def chat(self, messages: tuple[str, ...]) -> Prompt:
        """The conversation itself: Ollama puts the template on."""
        return Prompt(messages=messages)

    def complete(self, request: Request) -> Answer:
        """A streamed answer; raw, so that no template comes around a prompt that has none."""
        sampling = request.sampling
        options = {"temperature": sampling.temperature, "seed": sampling.seed + request.nonce}
        options |= {"num_predict": request.n_predict, "repeat_penalty": 1.0}
        options |= {} if sampling.greedy else {"top_k": sampling.top_k, "top_p": sampling.top_p}
        options |= {} if request.draft else {"draft_num_predict": 0}
        body: dict[str, Any] = {"model": self._id, "stream": True, "options": options}
        if request.messages:
            path = "/api/chat"
            said = enumerate(request.messages)
            body["messages"] = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in said]
        else:
            path, body = "/api/generate", {**body, "prompt": request.prompt, "raw": True}
        sent_ns = last_ns = CLOCK.now_ns()
        first_ns, final, pieces = None, None, []
        for now_ns, event in self._connection.stream(path, body):
            piece = str(event.get("response") or (event.get("message") or {}).get("content") or "")
            if piece:
                first_ns, last_ns = first_ns or now_ns, now_ns
                pieces.append(piece)
            if event.get("done"):
                final = event
        if final is None:
            raise ServerError(f"The stream ended after {len(pieces)} pieces without its end: half an answer.")
        n_tokens, decode_ns = int(final.get("eval_count") or 0), final.get("eval_duration")
        return Answer(
            text=self._connection.redact("".join(pieces)),
            n_tokens=n_tokens,
            n_prompt=final.get("prompt_eval_count"),
            ended=final.get("done_reason") == "stop",
            prompt_ns=final.get("prompt_eval_duration"),
            decode_ns=decode_ns,
            first_ns=None if first_ns is None else first_ns - sent_ns,
            client_decode_ns=None if first_ns is None else last_ns - first_ns,
            total_ns=CLOCK.now_ns() - sent_ns,
        )

    def settle(self, request: Request, answer: Answer) -> Answer:
        """The answer: its last line told everything."""
        return answer

    def counters(self) -> Counters | None:
        """None: Ollama tells what was accepted in its log alone."""
        return None

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

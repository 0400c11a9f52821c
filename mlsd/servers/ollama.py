"""Ollama's own protocol, from recorded exchanges: a line a piece, its clock in the last; a request may not draft.

It takes texts, and reports what was accepted in its log alone.
"""

from typing import Any

import msgspec

from mlsd.servers.connection import Connection
from mlsd.servers.endpoint import Endpoint, Request, Server, ServerAnswer, as_chat
from mlsd.servers.protocols import ListedModel, OllamaEvent


class Ollama(Endpoint):
    """An endpoint with `/api/generate` and `/api/chat`."""

    def __init__(self, connection: Connection, model: ListedModel, version: str) -> None:
        super().__init__(connection)
        self._id = model.name or model.model or ""
        self.server = Server(
            program="Ollama", build=version, model=self._id, has_clock=True, switches=True, untested=True
        )

    def complete(self, request: Request) -> ServerAnswer:
        """A streamed answer; raw, so that no template comes around a prompt that has none."""
        sampling = request.sampling
        options = {"temperature": sampling.temperature, "seed": sampling.seed + request.nonce}
        options |= {"num_predict": request.n_predict, "repeat_penalty": 1.0}
        options |= {} if sampling.greedy else {"top_k": sampling.top_k, "top_p": sampling.top_p}
        options |= {} if request.draft else {"draft_num_predict": 0}
        body: dict[str, Any] = {"model": self._id, "stream": True, "options": options}
        if request.messages:
            path, body = "/api/chat", {**body, "messages": as_chat(request.messages)}
        else:
            path, body = "/api/generate", {**body, "prompt": request.prompt, "raw": True}
        answer, _, final = self._stream(path, body, OllamaEvent, request, piece=_text, ends=lambda event: event.done)
        final = final or OllamaEvent()
        return msgspec.structs.replace(
            answer,
            n_tokens=final.eval_count or 0,
            n_prompt=final.prompt_eval_count,
            ended=final.done_reason == "stop",
            prompt_ns=final.prompt_eval_duration,
            decode_ns=final.eval_duration,
        )


def _text(event: OllamaEvent) -> str:
    return event.response or (event.message.content if event.message else None) or ""

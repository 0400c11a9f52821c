"""Ollama's own protocol, from recorded exchanges: a line a piece, its clock in the last; a request may not draft.

It takes texts, and reports what was accepted in its log alone.
"""

from collections.abc import Sequence
from typing import Any

from mlsd.servers.connection import Connection
from mlsd.servers.endpoint import Endpoint, Request, Server, as_chat
from mlsd.servers.protocols import ListedModel, OllamaEvent


class Ollama(Endpoint):
    """An endpoint with `/api/generate` and `/api/chat`."""

    kind = OllamaEvent

    def __init__(self, connection: Connection, model: ListedModel, version: str) -> None:
        super().__init__(connection)
        self._id = model.name or model.model or ""
        self.server = Server(
            program="Ollama", build=version, model=self._id, has_clock=True, switches=True, untested=True
        )

    def _body(self, request: Request, *, stream: bool) -> tuple[str, dict[str, Any]]:
        """Raw, so that no template comes around a prompt that has none."""
        sampling = request.sampling
        options = {"temperature": sampling.temperature, "seed": sampling.seed + request.nonce}
        options |= {"num_predict": request.n_predict, "repeat_penalty": 1.0}
        options |= {} if sampling.greedy else {"top_k": sampling.top_k, "top_p": sampling.top_p}
        options |= {} if request.draft else {"draft_num_predict": 0}
        body: dict[str, Any] = {"model": self._id, "stream": stream, "options": options}
        if request.messages:
            return "/api/chat", {**body, "messages": as_chat(request.messages)}
        return "/api/generate", {**body, "prompt": request.prompt, "raw": True}

    def _told(self, events: Sequence[OllamaEvent], *, whole: bool) -> dict[str, Any]:
        final = next((event for event in events[::-1] if event.done), OllamaEvent())
        return {
            "n_tokens": final.eval_count or 0,
            "n_prompt": final.prompt_eval_count,
            "ended": final.done_reason == "stop",
            "prompt_ns": final.prompt_eval_duration,
            "decode_ns": final.eval_duration,
        }

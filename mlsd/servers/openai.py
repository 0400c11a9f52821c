"""Servers that speak OpenAI's completions: llama-cpp-python's, mlx_lm.server, LM Studio's own variant, and any other.

A stream has a clock and pieces of text, which are not tokens; counts and token ids stand in a whole answer, where they
stand at all. So a text is asked for once more, outside what is timed, the first time that it is seen.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import msgspec

from mlsd.errors import ServerError
from mlsd.redact import redact
from mlsd.servers.connection import CLOCK, Connection
from mlsd.servers.endpoint import Answer, Endpoint, Request, Server, said
from mlsd.servers.protocols import Choice, Completion, Model, Stats, Usage


class OpenAI(Endpoint):
    """An endpoint with `/v1/completions` and `/v1/chat/completions`."""

    paths = ("/v1/completions", "/v1/chat/completions")

    def __init__(self, connection: Connection, model: Model, draft: str | None = None) -> None:
        """`model` is the entry of the server's list; `draft` the name of a draft model that a request may ask for."""
        super().__init__(connection)
        self._draft = draft
        self._id = model.id or "default_model"
        self._whole: dict[object, Answer] = {}
        name = PurePath(self._id).name.removesuffix(".gguf")
        self._is_python = model.owned_by == "me"  # llama-cpp-python lists its models as its user's own
        self.server = Server(program="llama-cpp-python" if self._is_python else "OpenAI-compatible", model=name)

    def settle(self, request: Request, answer: Answer) -> Answer:
        """The answer with the counts and ids of its text as the server tells them of a whole one."""
        key = (request.prompt, request.messages, request.n_predict, request.draft, answer.text)
        told = answer.n_tokens and not self.server.gives_tokens and self._draft is None
        if key not in self._whole and not told:
            whole = self._asked_whole(request)
            if whole.text != answer.text:
                raise ServerError("Asked again for the number of its tokens, the server wrote something else.")
            self._whole[key] = whole
        whole = self._whole.get(key, answer)
        return msgspec.structs.replace(
            answer,
            tokens=whole.tokens,
            n_tokens=whole.n_tokens,
            n_prompt=whole.n_prompt,
            ended=whole.ended,
            proposed=answer.proposed if answer.proposed is not None else whole.proposed,
            accepted=answer.accepted if answer.accepted is not None else whole.accepted,
        )

    def _body(self, request: Request, **more: Any) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._id,
            "max_tokens": request.n_predict,
            "temperature": sampling.temperature,
            "seed": sampling.seed + request.nonce,
            **({} if sampling.greedy else {"top_p": sampling.top_p}),
            **({"repeat_penalty": 1.0} if self._is_python else {}),  # its own default changes what greedy decoding says
            **({"draft_model": self._draft} if self._draft and request.draft else {}),
            **more,
        }
        if request.messages:
            return self.paths[1], {**body, "messages": said(request.messages)}
        return self.paths[0], {**body, "prompt": request.prompt}

    def complete(self, request: Request) -> Answer:
        """A streamed answer."""
        path, body = self._body(request, stream=True, stream_options={"include_usage": True})
        answer, events, _ = self._stream(
            path,
            body,
            Completion,
            n_predict=request.n_predict,
            piece=lambda event: event.text,
            ends=lambda event: event.reason,
        )
        usage = next((event.usage for event in reversed(events) if event.usage), Usage())
        return msgspec.structs.replace(
            answer,
            n_tokens=usage.completion_tokens or 0,
            n_prompt=usage.prompt_tokens,
            ended=next(filter(None, (event.reason for event in reversed(events))), None) == "stop",
        )

    def _asked_whole(self, request: Request) -> Answer:
        # A number is what OpenAI's protocol wants, a flag is what mlx_lm.server takes; others may refuse either.
        path, body = self._body(request, stream=False, **({"logprobs": True} if self.server.gives_tokens else {}))
        sent_ns = CLOCK.now_ns()
        final = self._connection.post(path, body, Completion)
        choice, usage, stats = (final.choices or (Choice(),))[0], final.usage or Usage(), final.stats or Stats()
        if usage.completion_tokens is None:
            raise ServerError("The server does not say how many tokens it wrote, and pieces of text are not tokens.")
        ids = (choice.logprobs and choice.logprobs.content) or ()
        return Answer(
            tokens=tuple(one.id for one in ids if one.id is not None),
            text=redact(choice.said),
            n_tokens=usage.completion_tokens,
            n_prompt=usage.prompt_tokens,
            ended=choice.finish_reason == "stop",
            total_ns=CLOCK.now_ns() - sent_ns,
            proposed=stats.total_draft_tokens_count,
            accepted=stats.accepted_draft_tokens_count,
        )


class MlxLm(OpenAI):
    """mlx_lm.server: a whole answer has token ids. It lists what the machine has downloaded, not what it serves."""

    def __init__(self, connection: Connection, model: Model, draft: str | None = None) -> None:
        super().__init__(connection, model, draft)
        self.server = Server(program="mlx_lm.server", model=self._id, gives_tokens=True)


class LMStudio(OpenAI):
    """LM Studio's `/api/v0`: the same with statistics; a request names the draft model, so one server does both."""

    paths = ("/api/v0/completions", "/api/v0/chat/completions")

    def __init__(self, connection: Connection, model: Model, draft: str | None = None) -> None:
        super().__init__(connection, msgspec.structs.replace(model, owned_by="lmstudio"), draft)
        known = {"program": "LM Studio", "switches": draft is not None, "untested": True}
        self.server = msgspec.structs.replace(self.server, **known)

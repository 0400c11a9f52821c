"""Servers that speak OpenAI's completions: llama-cpp-python's, vLLM, mlx_lm, mlx-vlm, LM Studio, and any other.

A stream has a clock and pieces of text, which are not tokens; counts and ids stand at its end or in a whole answer, if
at all. What a stream lets out is asked for once more, outside what is timed, for each text that is new.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, ClassVar

import msgspec

from mlsd.errors import ServerError
from mlsd.redact import redact
from mlsd.servers.connection import CLOCK, Connection
from mlsd.servers.endpoint import Endpoint, Request, RequestPrompt, Server, ServerAnswer, as_chat, nanoseconds
from mlsd.servers.protocols import (
    Completion,
    Counters,
    Drafted,
    ListedModel,
    Metrics,
    PromptDetails,
    Tokenized,
    Usage,
    prometheus,
)

_SETTLED_S, _SETTLES = 0.05, 20  # vLLM counts a moment after it has answered


class OpenAI(Endpoint):
    """An endpoint with `/v1/completions` and `/v1/chat/completions`."""

    paths = ("/v1/completions", "/v1/chat/completions")
    facts: ClassVar[dict[str, Any]] = {"program": "OpenAI-compatible"}  # of every such server
    settings: ClassVar[dict[str, Any]] = {}  # of every request

    def __init__(self, connection: Connection, model: ListedModel, draft: str | None = None, **facts: Any) -> None:
        """`model` is the entry of the server's list; `draft` the name of a draft model that a request may ask for."""
        super().__init__(connection)
        self._draft = draft
        self._id = model.id or "default_model"
        self._known: dict[object, ServerAnswer] = {}  # whole answers, by request and text
        self.server = Server(model=PurePath(self._id).name.removesuffix(".gguf"), **self.facts, **facts)

    def settle(self, request: Request, answer: ServerAnswer) -> ServerAnswer:
        """The answer with the counts and ids of its text as the server gives them for a whole one."""
        key = (request.prompt, request.messages, request.n_predict, request.draft, answer.text)
        complete = answer.n_tokens and self._draft is None and (answer.tokens or not self.server.gives_tokens)
        if key not in self._known and not complete:
            whole = self._whole(request)
            if whole.text != answer.text:
                raise ServerError("Asked again for the number of its tokens, the server wrote something else.")
            self._known[key] = whole
        whole = self._known.get(key, answer)
        drafted = ("proposed", "accepted") if answer.accepted is None else ()
        names = ("tokens", "n_tokens", "n_prompt", "ended", *drafted)
        return msgspec.structs.replace(answer, **{name: getattr(whole, name) for name in names})

    def _body(self, request: Request, **more: Any) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._id,
            "max_tokens": request.n_predict,
            "temperature": sampling.temperature,
            "seed": sampling.seed + request.nonce,
            **({} if sampling.greedy else {"top_p": sampling.top_p}),
            **({"draft_model": self._draft} if self._draft and request.draft else {}),
            **self.settings,
            **more,
        }
        if request.messages:
            return self.paths[1], {**body, "messages": as_chat(request.messages)}
        return self.paths[0], {**body, "prompt": request.prompt}

    def complete(self, request: Request) -> ServerAnswer:
        path, body = self._body(request, stream=True, stream_options={"include_usage": True})
        timed, events, _ = self._stream(
            path,
            body,
            Completion,
            request,
            piece=lambda event: event.text,
            ends=lambda event: event.reason,
            adds=lambda event: event.text or event.tokens,
        )
        return _with_counts(timed, events)

    def _whole(self, request: Request) -> ServerAnswer:
        # A number is what OpenAI's protocol wants, a flag is what mlx_lm.server takes; others may refuse either.
        path, body = self._body(request, stream=False, **({"logprobs": True} if self.server.gives_tokens else {}))
        sent_ns = CLOCK.now_ns()
        final = self._connection.post(path, body, Completion)
        if final.usage is None or final.usage.completion_tokens is None:
            raise ServerError("The server does not say how many tokens it wrote, and pieces of text are not tokens.")
        timed = ServerAnswer(text=redact(final.text), n_tokens=0, total_ns=CLOCK.now_ns() - sent_ns)
        return _with_counts(timed, [final])


def _with_counts(timed: ServerAnswer, events: Sequence[Completion]) -> ServerAnswer:
    last = events[::-1]
    usage = next((event.usage for event in last if event.usage), Usage())
    drafted = next((found for event in last if (found := event.drafted) != Drafted()), Drafted())
    metrics = next((event.metrics for event in last if event.metrics), Metrics())
    n_prompt, cached = usage.prompt_tokens, (usage.prompt_tokens_details or PromptDetails()).cached_tokens
    return msgspec.structs.replace(
        timed,
        tokens=tuple(token for event in events for token in event.tokens),
        n_tokens=usage.completion_tokens or 0,
        n_prompt=n_prompt,
        n_processed=None if n_prompt is None or cached is None else n_prompt - cached,
        ended=next((event.reason for event in last if event.reason), None) == "stop",
        prompt_ns=nanoseconds(metrics.time_to_first_token_ms),
        decode_ns=nanoseconds(metrics.generation_time_ms),
        proposed=drafted.proposed,
        accepted=drafted.accepted,
        n_rounds=drafted.rounds,
        by_accepted=drafted.by_accepted,
    )


class LlamaCppPython(OpenAI):
    """llama-cpp-python's own server."""

    facts: ClassVar[dict[str, Any]] = {"program": "llama-cpp-python"}
    settings: ClassVar[dict[str, Any]] = {"repeat_penalty": 1.0}  # its own default changes what greedy decoding writes


class MlxLm(OpenAI):
    """mlx_lm.server: a whole answer has token ids. It lists what the machine has downloaded, not what it serves.

    It does not report acceptance over HTTP: `from_draft`, a share of the output, is in its Python API alone.
    """

    facts: ClassVar[dict[str, Any]] = {"program": "mlx_lm.server", "gives_tokens": True}


class MlxVlm(OpenAI):
    """mlx-vlm's server: conversations alone, and counts of drafting as llama-server names them, with rounds.

    Its accepted tokens are those that matched, also behind the end of the answer: they may exceed the output (mlx-vlm
    2324). Its clock divides all tokens by a rate that may or may not count the first one, so ours is used.
    """

    paths = ("", "/v1/chat/completions")
    facts: ClassVar[dict[str, Any]] = {"program": "mlx-vlm", "chat_only": True, "untested": True}

    def _body(self, request: Request, **more: Any) -> tuple[str, dict[str, Any]]:
        text = request.prompt if isinstance(request.prompt, str) else ""
        return super()._body(msgspec.structs.replace(request, messages=request.messages or (text,)), **more)


class Vllm(OpenAI):
    """vLLM: token ids in and out, its clock and counts where it was started to report them, else its counters."""

    facts: ClassVar[dict[str, Any]] = {"program": "vLLM", "gives_tokens": True, "forgets": True, "untested": True}

    def _body(self, request: Request, **more: Any) -> tuple[str, dict[str, Any]]:
        # A salt of its own keeps a request from what the prefix cache remembers of others.
        own: dict[str, Any] = {"return_token_ids": True, "ignore_eos": request.ignore_eog, "include_metrics": True}
        own |= {} if request.keep else {"cache_salt": f"{request.nonce} {time.monotonic_ns()}"}
        more.pop("logprobs", None)
        return super()._body(request, **own, **more)

    def tokenize(self, text: str) -> tuple[int, ...]:
        return self._connection.post("/tokenize", {"model": self._id, "prompt": text}, Tokenized).tokens

    def chat(self, messages: tuple[str, ...]) -> RequestPrompt:
        """The template that the server has, put on here: a completion never gets it again."""
        body = {"model": self._id, "messages": as_chat(messages), "add_generation_prompt": True}
        return RequestPrompt(tokens=self._connection.post("/tokenize", body, Tokenized).tokens)

    def counters(self) -> Counters | None:
        """What `/metrics` counts, once it has settled; None where nothing is counted of speculation."""
        before = None
        for _ in range(_SETTLES):
            counted = prometheus(self._connection.get_text("/metrics") or "", f"{self.url}/metrics")
            if counted == before:
                break
            before = counted
            time.sleep(_SETTLED_S)
        return None if counted.rounds is None else counted


class LMStudio(OpenAI):
    """LM Studio's `/api/v0`: the same with statistics; a request names the draft model, so one server does both."""

    paths = ("/api/v0/completions", "/api/v0/chat/completions")
    facts: ClassVar[dict[str, Any]] = {"program": "LM Studio", "untested": True}

"""Servers that speak OpenAI's completions: one client, and a table of what each of them does otherwise.

A stream has a clock and pieces of text, which are not tokens; counts and ids stand at its end or in a whole answer, if
at all. What a stream lets out is asked for once more, outside what is timed, for each text that is new.
"""

import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from mlsd.errors import ServerError
from mlsd.outside import Milliseconds
from mlsd.records import Record
from mlsd.servers.connection import Connection
from mlsd.servers.endpoint import Endpoint, Request, Server, ServerAnswer, as_chat, nanoseconds
from mlsd.servers.protocols import Completion, Counters, Counts, Tokenized

_SETTLED_S, _SETTLES = 0.05, 20  # vLLM counts a moment after it has answered
UNNAMED = "default_model"  # what mlx_lm.server takes for the model that it was started with


class Dialect(Record, frozen=True, kw_only=True):
    """What a server does otherwise than OpenAI."""

    server: Server
    owned_by: str | None = None  # who its list of models says they belong to
    api: str = "/v1"
    counts: bool = False  # drafted tokens, on `/metrics`
    settings: dict[str, Any] = msgspec.field(default_factory=dict)  # of every request


OTHER = Dialect(server=Server(program="OpenAI-compatible"))
VLLM = Dialect(
    server=Server(program="vLLM", gives_tokens=True, forgets=True, untested=True), owned_by="vllm", counts=True
)
# Its whole answers have token ids; it reports no acceptance: `from_draft` is in its Python API alone.
MLX_LM = Dialect(server=Server(program="mlx_lm.server", gives_tokens=True))
# Its accepted tokens are those that matched, also behind the end of the answer (mlx-vlm 2324).
MLX_VLM = Dialect(server=Server(program="mlx-vlm", chat_only=True, untested=True))
# A request names the draft model, so one server does both.
LM_STUDIO = Dialect(server=Server(program="LM Studio", names_draft=True, untested=True), api="/api/v0")
OWNED = {
    one.owned_by: one
    for one in (
        VLLM,
        # It lists its models as its user's own; its default of `repeat_penalty` changes what greedy decoding writes.
        Dialect(server=Server(program="llama-cpp-python"), owned_by="me", settings={"repeat_penalty": 1.0}),
        Dialect(server=Server(program="MTPLX", chat_only=True, untested=True), owned_by="mtplx"),
        Dialect(server=Server(program="mlx-dspark", untested=True), owned_by="mlx-dspark"),
        Dialect(server=Server(program="Rapid-MLX", untested=True), owned_by="rapid-mlx", counts=True),
        Dialect(server=Server(program="omlx", untested=True), owned_by="omlx"),
    )
}
# Where answers tell what was drafted; of several numbers the sum. `rejected` stands in for `proposed`.
DRAFTED = (
    {  # vLLM's docs/features/speculative_decoding/per_request_metrics.md; the bonus token of a step is in none of these
        "proposed": "metrics.speculative_decoding.num_draft_tokens",
        "accepted": "metrics.speculative_decoding.num_accepted_draft_tokens",
        "n_rounds": "metrics.speculative_decoding.num_spec_steps",
        "by_accepted": "metrics.speculative_decoding.acceptance_histogram",
    },
    {  # Rapid-MLX's pull request 3223, by depth
        "proposed": "metrics.speculative_decoding.drafted_by_depth",
        "accepted": "metrics.speculative_decoding.accepted_by_depth",
        "n_rounds": "metrics.speculative_decoding.verify_calls",
    },
    # mlx-vlm's pull request 1788, mlxcel's issue 1314; without rounds llama-server's
    {"proposed": "timings.draft_n", "accepted": "timings.draft_n_accepted", "n_rounds": "timings.draft_rounds"},
    {  # MTPLX's `PUBLIC_MTPLX_STATS_KEYS`
        "proposed": "mtplx_stats.drafted_by_depth",
        "accepted": "mtplx_stats.accepted_by_depth",
        "n_rounds": "mtplx_stats.verify_calls",
    },
    {"n_rounds": "x_mlx_dspark.target_forwards"},  # mlx-dspark's HTTP reference
    {"proposed": "stats.total_draft_tokens_count", "accepted": "stats.accepted_draft_tokens_count"},  # LM Studio's
    {  # OpenAI's of its predictions
        "accepted": "usage.completion_tokens_details.accepted_prediction_tokens",
        "rejected": "usage.completion_tokens_details.rejected_prediction_tokens",
    },
)
_COUNTED = {
    "n_tokens": "usage.completion_tokens",
    "n_prompt": "usage.prompt_tokens",
    "n_cached": "usage.prompt_tokens_details.cached_tokens",
}
# To the first token from scheduling on, and from there to the last: vLLM's in ms, LM Studio's in s.
_CLOCK_MS = {"prompt_ns": "metrics.time_to_first_token_ms", "decode_ns": "metrics.generation_time_ms"}
_CLOCK_S = {"prompt_ns": "stats.time_to_first_token", "decode_ns": "stats.generation_time"}


class OpenAI(Endpoint):
    """An endpoint with completions and chat completions."""

    kind = Completion

    def __init__(
        self,
        connection: Connection,
        model_id: str | None,
        dialect: Dialect = OTHER,
        draft: str | None = None,
        **facts: Any,
    ) -> None:
        """`model_id` is the one in the server's list; `draft` the name of a draft model that a request may ask for."""
        super().__init__(connection)
        self._draft, self._dialect = draft, dialect
        self._id = model_id or UNNAMED
        self._known: dict[object, ServerAnswer] = {}  # whole answers, by request and text
        facts = {"model": PurePath(self._id).name.removesuffix(".gguf"), **facts}
        self.server = msgspec.structs.replace(dialect.server, **facts)

    def settle(self, request: Request, answer: ServerAnswer) -> ServerAnswer:
        """The answer with the counts and ids of its text as the server gives them for a whole one."""
        key = (request.prompt, request.messages, request.n_predict, request.draft, answer.text)
        complete = answer.n_tokens and self._draft is None and (answer.tokens or not self.server.gives_tokens)
        if key not in self._known and not complete:
            whole = self.whole(request)
            if whole.text != answer.text:
                raise ServerError("Asked again for the number of its tokens, the server wrote something else.")
            self._known[key] = whole
        whole = self._known.get(key, answer)
        drafted = ("proposed", "accepted") if answer.accepted is None else ()
        names = ("tokens", "n_tokens", "n_prompt", "ended", *drafted)
        return msgspec.structs.replace(answer, **{name: getattr(whole, name) for name in names})

    def _body(self, request: Request, *, stream: bool) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        # A number is what OpenAI's protocol wants, a flag is what mlx_lm.server takes; others may refuse either.
        ids = {"logprobs": True} if self._dialect is MLX_LM else {}
        body: dict[str, Any] = {
            "model": self._id,
            "max_tokens": request.n_predict,
            "temperature": sampling.temperature,
            "seed": sampling.seed + request.nonce,
            **({} if sampling.greedy else {"top_p": sampling.top_p}),
            **({"draft_model": self._draft} if self._draft and request.draft else {}),
            **self._dialect.settings,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else ids),
        }
        messages = request.messages or ((str(request.prompt),) if self.server.chat_only else ())
        if messages:
            return f"{self._dialect.api}/chat/completions", {**body, "messages": as_chat(messages)}
        return f"{self._dialect.api}/completions", {**body, "prompt": request.prompt}

    def _told(self, events: Sequence[Completion], *, whole: bool) -> dict[str, Any]:
        told = _fields(events, _COUNTED, Counts)
        if whole and "n_tokens" not in told:
            raise ServerError("The server does not say how many tokens it wrote, and pieces of text are not tokens.")
        drafts = [found for fields in DRAFTED if (found := _fields(events, fields, Counts))]
        # OpenAI's own counts are zeros where nothing is predicted: what counts more is meant.
        drafted = next((found for found in drafts if any(found.values())), drafts[0] if drafts else {})
        if "rejected" in drafted:
            drafted["proposed"] = drafted.get("accepted", 0) + drafted.pop("rejected")
        cached, n_prompt = told.pop("n_cached", None), told.get("n_prompt")
        return {
            "tokens": tuple(token for event in events for token in event.tokens),
            "n_processed": None if n_prompt is None or cached is None else n_prompt - cached,
            "ended": next((event.ended for event in events[::-1] if event.ended), None) == "stop",
            **told,
            **drafted,
            **{name: nanoseconds(ms) for name, ms in _fields(events, _CLOCK_MS, Milliseconds | None).items()},
            **{name: nanoseconds(1e3 * s) for name, s in _fields(events, _CLOCK_S, Milliseconds | None).items()},
        }

    def counters(self) -> Counters | None:
        """What `/metrics` counts, once it has settled; None where nothing is counted of speculation."""
        before = None
        for _ in range(_SETTLES if self._dialect.counts else 0):
            counted = self._connection.counters()
            if counted == before:
                break
            before = counted
            time.sleep(_SETTLED_S)
        return None if before is None or before.proposed is None else before


def _fields(events: Sequence[Completion], fields: dict[str, str], kind: Any) -> dict[str, Any]:
    """What the last event that says it says of each field; of several the sum, but for those that are meant as one."""
    found = {}
    for name, path in fields.items():
        root = path.partition(".")[0]
        value = next(
            (value for event in events[::-1] if getattr(event, root) and (value := event.at(path, kind)) is not None),
            None,
        )
        if isinstance(value, dict):
            value = tuple(value.values())
        if value is not None:
            found[name] = sum(value) if isinstance(value, tuple) and name != "by_accepted" else value
    return found


class Vllm(OpenAI):
    """vLLM: token ids in and out, its clock and counts where it was started to report them, else its counters."""

    def _body(self, request: Request, *, stream: bool) -> tuple[str, dict[str, Any]]:
        path, body = super()._body(request, stream=stream)
        body |= {"return_token_ids": True, "ignore_eos": request.ignore_eog, "include_metrics": True}
        # A salt of its own keeps a request from what the prefix cache remembers of others.
        return path, body if request.keep else {**body, "cache_salt": f"{request.nonce} {time.monotonic_ns()}"}

    def tokenize(self, text: str) -> tuple[int, ...]:
        return self._connection.post("/tokenize", {"model": self._id, "prompt": text}, Tokenized).tokens

    def chat(self, messages: tuple[str, ...]) -> Request:
        """The template that the server has, put on here: a completion never gets it again."""
        body = {"model": self._id, "messages": as_chat(messages), "add_generation_prompt": True}
        return Request(prompt=self._connection.post("/tokenize", body, Tokenized).tokens)

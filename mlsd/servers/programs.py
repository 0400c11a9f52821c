"""What programs that serve models do otherwise: one table, a row each. Who adds a program adds a row.

A path like ``choices.0.text`` leads through JSON, ``*`` to every item of a list. Rows are tried from the first on: a
page that only that program has, or who its list of models says they belong to.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mlsd.errors import ServerError
from mlsd.outside import Count, Name, Token, excerpt
from mlsd.records import Record

# Our name of a setting -> where a request has it; what is not here a program is not told.
_OPENAI = {
    "model": "model", "prompt": "prompt", "messages": "messages", "n_predict": "max_tokens", "stream": "stream",
    "temperature": "temperature", "seed": "seed", "top_p": "top_p",
}  # fmt: skip
_NAMES_DRAFT = {**_OPENAI, "draft": "draft_model"}
_VLLM = {**_OPENAI, "ignore_eog": "ignore_eos", "salt": "cache_salt"}
_OLLAMA = {
    "model": "model", "prompt": "prompt", "messages": "messages", "stream": "stream", "n_probs": "top_logprobs",
    "n_predict": "options.num_predict", "temperature": "options.temperature", "seed": "options.seed",
    "top_k": "options.top_k", "top_p": "options.top_p",
}  # fmt: skip
_LLAMA_CPP = {
    "prompt": "prompt", "n_predict": "n_predict", "stream": "stream", "temperature": "temperature", "seed": "seed",
    "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "ignore_eog": "ignore_eos", "keep": "cache_prompt",
    "n_probs": "n_probs",
}  # fmt: skip
_USAGE = {"stream_options.include_usage": True}


class Program(Record, frozen=True, kw_only=True):
    """One program, and what it does otherwise than OpenAI."""

    name: str
    page: str = "/v1/models"  # that tells it
    path: str = "data.0.owned_by"  # what stands there on this page ...
    value: str | None = None  # ... if not just anything
    models: tuple[str, ...] = ("/v1/models",)  # pages that list models, the first that lists any
    model: tuple[tuple[str, str], ...] = ()  # pages and paths of the model's name, where no list tells it
    sent_as: str | None = None  # the name of the model in requests, where it is always the same
    facts: Mapping[str, tuple[str, str]] = {}  # of itself and its model: page and path
    asks: Mapping[str, str] = msgspec.field(default_factory=lambda: _NAMES_DRAFT)
    completions: str = "/v1/completions"
    chats: str = "/v1/chat/completions"
    always: Mapping[str, Any] = {}  # settings of every request, by path
    streamed: Mapping[str, Any] = msgspec.field(default_factory=lambda: _USAGE)  # of a stream
    whole: Mapping[str, Any] = {}  # of an answer at once
    raw: Mapping[str, Any] = {}  # of a prompt that is no conversation
    with_candidates: Mapping[str, Any] = {}  # where they are asked for
    plain: Mapping[str, Any] = {}  # what leaves drafting off; where there is none, a request cannot
    names_draft: bool = False  # a request drafts with the model that it names, and with none where it names none
    tokenizes: str | None = None  # the field of `/tokenize` that takes the text
    takes_template: bool = False  # its template is put on here, from `/props`
    chat_only: bool = False  # it takes conversations, no plain text
    gives_tokens: bool = False  # ids, or outputs are compared as text
    gives_probabilities: bool = False  # of candidates, or a difference is never a near tie
    counts_all: bool = False  # where it says nothing of drafted tokens there were none
    has_counters: bool = False  # of drafted tokens, on `/metrics`
    forgets: bool = False  # it can be told to remember nothing of a prompt
    breaks_off: str = "Look at its log."  # what to do where its stream ends in the middle
    untested: bool = True  # written from recorded exchanges, never tried on a real one


PROGRAMS = (
    Program(
        name="llama-server", page="/props", path="default_generation_settings",
        model=(("/props", "model_alias"), ("/props", "model_path")),
        facts={
            "build": ("/props", "build_info"), "n_slots": ("/props", "total_slots"),
            "n_vocab": ("/v1/models", "data.0.meta.n_vocab"), "n_parameters": ("/v1/models", "data.0.meta.n_params"),
        },
        asks=_LLAMA_CPP, completions="/completion", always={"return_tokens": True},
        streamed={"timings_per_token": True}, tokenizes="content", takes_template=True, gives_tokens=True,
        gives_probabilities=True, counts_all=True, has_counters=True, forgets=True, untested=False,
    ),
    Program(  # raw: no template comes around a prompt that has none
        name="Ollama", page="/api/version", path="version", models=("/api/ps", "/api/tags"),
        facts={"build": ("/api/version", "version")}, asks=_OLLAMA, completions="/api/generate", chats="/api/chat",
        always={"options.repeat_penalty": 1.0}, streamed={}, raw={"raw": True}, with_candidates={"logprobs": True},
        plain={"options.draft_num_predict": 0},
        gives_probabilities=True,
    ),
    Program(
        name="LM Studio", page="/api/v0/models", path="data.0", models=("/api/v0/models",),
        completions="/api/v0/completions", chats="/api/v0/chat/completions", names_draft=True,
    ),
    Program(
        name="vLLM", value="vllm", facts={"build": ("/version", "version")}, asks=_VLLM,
        always={"return_token_ids": True, "include_metrics": True}, tokenizes="prompt", gives_tokens=True,
        has_counters=True, forgets=True,
    ),
    Program(  # it lists its models as its user's own; its own `repeat_penalty` changes what greedy decoding writes
        name="llama-cpp-python", value="me", always={"repeat_penalty": 1.0}, untested=False,
        breaks_off="It does so where its speculation fails: look at its log.",
    ),
    Program(name="MTPLX", value="mtplx", chat_only=True),
    Program(name="mlx-dspark", value="mlx-dspark"),
    Program(name="Rapid-MLX", value="rapid-mlx", has_counters=True),
    Program(name="omlx", value="omlx"),
    Program(  # a number of log-probabilities is what OpenAI's protocol wants, a flag is what it takes
        name="mlx_lm.server", page="/health", path="status", value="ok", sent_as="default_model",
        whole={"logprobs": True}, gives_tokens=True, untested=False,
    ),
    Program(  # its accepted tokens are those that matched, also behind the end of the answer (mlx-vlm 2324)
        name="mlx-vlm", page="/health", path="loaded_model", model=(("/health", "loaded_model"),), chat_only=True,
    ),
    Program(name="OpenAI-compatible", path="data", untested=False),
)  # fmt: skip

# Where answers tell what: the first path at which any event has it, of several numbers there the sum.
TEXT = (
    "content", "response", "choices.0.text", "choices.0.delta.content", "choices.0.message.content", "message.content",
)  # fmt: skip
COUNTS = {
    "n_tokens": ("tokens_predicted", "eval_count", "usage.completion_tokens"),
    "n_prompt": ("tokens_evaluated", "prompt_eval_count", "usage.prompt_tokens"),
    "n_cached": ("usage.prompt_tokens_details.cached_tokens",),
    # vLLM's per_request_metrics.md, without the bonus token of a step; Rapid-MLX's pull request 3223, by depth;
    # llama-server, mlx-vlm's pull request 1788, mlxcel's issue 1314; MTPLX's `PUBLIC_MTPLX_STATS_KEYS`; LM Studio;
    # mlx-dspark's HTTP reference; OpenAI of its predictions, zeros where nothing is predicted, so they come last.
    "proposed": (
        "metrics.speculative_decoding.num_draft_tokens", "metrics.speculative_decoding.drafted_by_depth",
        "timings.draft_n", "mtplx_stats.drafted_by_depth", "stats.total_draft_tokens_count",
    ),
    "accepted": (
        "metrics.speculative_decoding.num_accepted_draft_tokens", "metrics.speculative_decoding.accepted_by_depth",
        "timings.draft_n_accepted", "mtplx_stats.accepted_by_depth", "stats.accepted_draft_tokens_count",
        "usage.completion_tokens_details.accepted_prediction_tokens",
    ),
    "rejected": ("usage.completion_tokens_details.rejected_prediction_tokens",),
    "n_rounds": (
        "metrics.speculative_decoding.num_spec_steps", "metrics.speculative_decoding.verify_calls",
        "timings.draft_rounds", "mtplx_stats.verify_calls", "x_mlx_dspark.target_forwards",
    ),
}  # fmt: skip
BY_ACCEPTED = "metrics.speculative_decoding.acceptance_histogram"  # vLLM's: rounds that accepted so many
PROCESSED = "timings.prompt_n"  # below 0 where nothing was read yet
# To the first token from scheduling on, and from there to the last, with the nanoseconds of its unit.
CLOCKS = {
    "prompt_ns": (
        ("timings.prompt_ms", 1e6), ("metrics.time_to_first_token_ms", 1e6), ("stats.time_to_first_token", 1e9),
        ("prompt_eval_duration", 1),
    ),
    "decode_ns": (
        ("timings.predicted_ms", 1e6), ("metrics.generation_time_ms", 1e6), ("stats.generation_time", 1e9),
        ("eval_duration", 1),
    ),
}  # fmt: skip
TOKENS = ("tokens", "choices.0.token_ids", "choices.0.logprobs.content.*.id")  # ids
SCORES = ("completion_probabilities", "logprobs")  # of each token the candidates, with an id or a piece of text
OVER = ("stop", "done", "choices.0.finish_reason")  # what the last piece has
REASON = ("stop_type", "done_reason", "choices.0.finish_reason")  # why the output ended ...
BY_ITSELF = ("eos", "stop")  # ... if the model ended it
# What a Prometheus page counts: llama.cpp 26389 took over vLLM's names; Rapid-MLX has its own.
COUNTERS = {
    "tokens_predicted_total": "n_tokens",
    "spec_decode_num_draft_tokens_total": "proposed", "spec_decode_attempts_total": "proposed",
    "spec_decode_num_accepted_tokens_total": "accepted", "spec_decode_accepts_total": "accepted",
    "spec_decode_num_drafts_total": "n_rounds",
}  # fmt: skip
_COUNTER = re.compile(r"^(?:llamacpp:|vllm:|rapid_mlx_)(\w{1,200})(?:\{[^}\n]{0,2000}\})? (\S+)", re.MULTILINE)
_COUNT, _MOST = re.compile(r"\d{1,20}(\.\d{0,20})?(e\+?\d{1,3})?"), 2.0**53
Counters = Mapping[str, int]  # by our names; what a server does not count is not in it
LogProbability = Annotated[float, Meta(ge=-1e39, le=1.0)]
Tokens = tuple[Token, ...]
Span = Annotated[float, Meta(ge=0, le=1e18)]  # in ns, or in a unit that is longer
Sum = Count | tuple[Count, ...] | dict[str, Count]


class Timings(Record, frozen=True, kw_only=True):
    """llama-server's clock and counts, so far in a stream."""

    predicted_n: Count = 0
    predicted_ms: Span = 0.0
    draft_n: Count = 0
    draft_n_accepted: Count = 0


class ScoredToken(Record, frozen=True, kw_only=True):
    """A token of the output, or one that could have been."""

    id: Token | None = None
    token: str | None = None
    logprob: LogProbability | None = None  # null where it is minus infinity
    top_logprobs: tuple[ScoredToken, ...] | None = None  # those that could have been there

    def candidates(self) -> dict[int | str, float]:
        """Log-probabilities of itself, first, and of the others; by id, or by text where there are no ids."""
        scores = {token._key: token.logprob for token in (self, *(self.top_logprobs or ()))}
        return {key: value for key, value in scores.items() if key is not None and value is not None}

    @property
    def _key(self) -> int | str | None:
        return self.token if self.id is None else self.id


def parse_counters(page: str, sender: str) -> Counters:
    """What a server counted since it started, summed over labels: vLLM has a counter for every engine.

    Raises: ServerError for a counter that is no count.
    """
    counts = Counter[str]()
    for name, text in _COUNTER.findall(page):
        if name in COUNTERS:
            value = float(text) if _COUNT.fullmatch(text) else -1.0
            if not 0 <= value <= _MOST:
                what = f"{name} is {excerpt(text.encode())!r}"
                raise ServerError(f"{sender} returned a counter that cannot be used: {what}.")
            counts[COUNTERS[name]] += int(value)
    return counts


def counts_between(before: Counters | None, after: Counters | None) -> Counters:
    """What was counted between two looks, of what both have."""
    return {name: n - before[name] for name, n in (after or {}).items() if before and name in before}


def value_at(tree: Any, path: str) -> Any:
    """What stands at a path; None where nothing does."""
    names = path.split(".")
    for depth, name in enumerate(names):
        if name == "*":
            rest = ".".join(names[depth + 1 :])
            return [value_at(item, rest) for item in tree] if isinstance(tree, list) else None
        if isinstance(tree, dict):
            tree = tree.get(name)
        elif isinstance(tree, list) and name.isdigit():
            tree = tree[int(name)] if int(name) < len(tree) else None
        else:
            return None
    return tree


def read_value(tree: Any, path: str, kind: Any, sender: str) -> Any:
    """What stands at a path as one of that kind; None where nothing does. Raises: ServerError for what is not."""
    value = value_at(tree, path)
    try:
        return None if value is None else msgspec.convert(value, kind)
    except msgspec.ValidationError as misfit:
        where = str(misfit).partition(" - at ")[0]
        raise ServerError(f"{sender} has a value that cannot be used: {where} - at `$.{path}`.") from misfit


def set_value(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set what stands at a path."""
    *names, last = path.split(".")
    for name in names:
        tree = tree.setdefault(name, {})
    tree[last] = value


def names_of(listed: Any, sender: str) -> list[str]:
    """The names of listed models that are loaded and write text: models that decide (`/v1/systemone`) do not."""
    names = []
    for model in listed if isinstance(listed, list) else ():
        kinds = value_at(model, "output_modalities") or value_at(model, "architecture.output_modalities") or ["text"]
        if value_at(model, "state") in (None, "loaded") and isinstance(kinds, list) and "text" in kinds:
            values = (read_value(model, field, Name, sender) for field in ("id", "name", "model"))
            names += [name for name in values if name][:1]
    return names

"""What servers may answer, protocol by protocol: records whose types hold the ranges; fields nobody reads are left out.

Servers leave out what they do not know, or write null: every field has a default, and None means that it was not said.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from mlsd.errors import ServerError
from mlsd.outside import Count, Milliseconds, Name, Nanoseconds, Token, excerpt
from mlsd.records import Record

LogProbability = Annotated[float, Meta(ge=-1e39, le=1.0)]
_NOTHING = (b"", b"null", b'""', b"{}", b"[]", b"false")


class Said(Record, frozen=True, kw_only=True):
    """Anything a server answers to a request: also that it cannot, with a status that says it can."""

    error: msgspec.Raw = msgspec.Raw()

    @property
    def failure(self) -> str | None:
        """What went wrong, in the server's words."""
        said = bytes(self.error)
        return None if said in _NOTHING else excerpt(said)


# --- llama-server -------------------------------------------------------------------------------------------------


class Settings(Record, frozen=True, kw_only=True):
    """`default_generation_settings`."""

    n_ctx: Count | None = None


class Props(Record, frozen=True, kw_only=True):
    """`/props`."""

    default_generation_settings: Settings | None
    build_info: Name | None = None
    model_alias: Name | None = None
    model_path: Name | None = None
    total_slots: Count | None = None


class Timings(Record, frozen=True, kw_only=True):
    """The server's clock and counts, so far in a stream."""

    prompt_n: int | None = None  # below 0 where it has read nothing yet
    prompt_ms: Milliseconds | None = None
    predicted_n: Count | None = None
    predicted_ms: Milliseconds | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class Candidate(Record, frozen=True, kw_only=True):
    """One token that could have been."""

    id: Token
    logprob: LogProbability | None = None  # null where it is minus infinity


class Candidates(Record, frozen=True, kw_only=True):
    """Those of one place."""

    top_logprobs: tuple[Candidate, ...] | None = None


class LlamaEvent(Said, frozen=True, kw_only=True):
    """`/completion`: a piece of a stream, its end, or a whole answer."""

    content: str | None = None
    tokens: tuple[Token, ...] | None = None
    stop: bool | None = None
    stop_type: Name | None = None
    tokens_predicted: Count | None = None
    tokens_evaluated: Count | None = None
    timings: Timings | None = None
    completion_probabilities: tuple[Candidates, ...] | None = None


class Tokenized(Said, frozen=True, kw_only=True):
    """`/tokenize`."""

    tokens: tuple[Token, ...] = ()


class Templated(Said, frozen=True, kw_only=True):
    """`/apply-template`."""

    prompt: str = ""


_COUNTER = re.compile(r"^llamacpp:(\w+?)(?:\{position=\"(\d{1,4})\"\})? (\S+)$", re.MULTILINE)
_MOST = 2.0**53


def prometheus(page: str, sender: str) -> tuple[dict[str, int], dict[int, int]]:
    """llama-server's counters by name, and the tokens accepted at each place of a draft.

    Raises: ServerError for a counter that is no count.
    """
    plain: dict[str, int] = {}
    places: dict[int, int] = {}
    for name, place, text in _COUNTER.findall(page):
        try:
            value = float(text[:40])
        except ValueError:
            value = -1.0
        counts = place or name.endswith("_total")
        if counts and not 0 <= value <= _MOST:
            raise ServerError(f"{sender} returned a counter that cannot be used: {name} is {excerpt(text.encode())!r}.")
        if counts and not place:
            plain[name] = int(value)
        elif counts and "per_pos" in name:
            places[int(place)] = int(value)
    return plain, places


# --- OpenAI's, mlx_lm's and LM Studio's ---------------------------------------------------------------------------


class ModelMeta(Record, frozen=True, kw_only=True):
    """What llama-server adds to its entry of `/v1/models`."""

    n_vocab: Count | None = None
    n_params: Count | None = None


class Model(Record, frozen=True, kw_only=True):
    """An entry of a list of models."""

    id: Name | None = None
    name: Name | None = None  # Ollama's
    model: Name | None = None
    owned_by: Name | None = None
    state: Name | None = None
    meta: ModelMeta | None = None


class Models(Record, frozen=True, kw_only=True):
    """`/v1/models` and `/api/v0/models`; `/api/ps` and `/api/tags`."""

    data: tuple[Model, ...] | None = None
    models: tuple[Model, ...] | None = None


class Health(Record, frozen=True, kw_only=True):
    """`/health` of mlx_lm."""

    status: Name


class Message(Record, frozen=True, kw_only=True):
    """A message, or a piece of one."""

    content: str | None = None


class TokenId(Record, frozen=True, kw_only=True):
    """A token of mlx_lm's whole answer."""

    id: Token | None = None


class Ids(Record, frozen=True, kw_only=True):
    """`logprobs`."""

    content: tuple[TokenId, ...] | None = None


class Choice(Record, frozen=True, kw_only=True):
    """One answer, of completions or chat."""

    text: str | None = None
    delta: Message | None = None
    message: Message | None = None
    finish_reason: Name | None = None
    logprobs: Ids | None = None

    @property
    def said(self) -> str:
        """The text, of whichever of the two protocols, whole or a piece."""
        inner = self.delta or self.message
        return self.text or (inner.content if inner else None) or ""


class Usage(Record, frozen=True, kw_only=True):
    """Tokens as the server counts them."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class Stats(Record, frozen=True, kw_only=True):
    """LM Studio's."""

    total_draft_tokens_count: Count | None = None
    accepted_draft_tokens_count: Count | None = None


class Completion(Said, frozen=True, kw_only=True):
    """`/v1/completions` and `/v1/chat/completions`, whole or a piece."""

    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    stats: Stats | None = None

    @property
    def text(self) -> str:
        """What it adds to the output."""
        return "".join(choice.said for choice in self.choices or ())

    @property
    def reason(self) -> str | None:
        """Why the output ended, if it did."""
        return next((choice.finish_reason for choice in self.choices or () if choice.finish_reason), None)


# --- Ollama's -----------------------------------------------------------------------------------------------------


class Version(Record, frozen=True, kw_only=True):
    """`/api/version`."""

    version: Name


class OllamaEvent(Said, frozen=True, kw_only=True):
    """`/api/generate` and `/api/chat`: a line."""

    response: str | None = None
    message: Message | None = None
    done: bool | None = None
    done_reason: Name | None = None
    prompt_eval_count: Count | None = None
    prompt_eval_duration: Nanoseconds | None = None
    eval_count: Count | None = None
    eval_duration: Nanoseconds | None = None

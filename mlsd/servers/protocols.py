"""What servers may answer, protocol by protocol: records whose types hold the ranges; fields nobody reads are left out.

Servers leave out what they do not know, or write null: every field has a default, and None means that it was not given.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mlsd.errors import ServerError
from mlsd.outside import Count, Milliseconds, Name, Nanoseconds, Token, excerpt
from mlsd.records import Record

LogProbability = Annotated[float, Meta(ge=-1e39, le=1.0)]
_Many = Meta(max_length=1_000)
Counts = Count | Annotated[tuple[Count, ...], _Many] | Annotated[dict[str, Count], _Many] | None
Tree = dict[str, Any] | None  # read by paths, through types: `Completion.at`
_NOTHING = (b"", b"null", b'""', b"{}", b"[]", b"false")


class Reply(Record, frozen=True, kw_only=True):
    """Anything a server answers to a request: also that it cannot, with a status that says it can."""

    error: msgspec.Raw = msgspec.Raw()

    @property
    def failure(self) -> str | None:
        raw = bytes(self.error)
        return None if raw in _NOTHING else excerpt(raw)

    @property
    def text(self) -> str:
        """What it adds to the output, as text."""
        return ""

    @property
    def added(self) -> object:
        """What it adds to the output, as a sign of life."""
        return self.text

    @property
    def ended(self) -> object:
        """Whether the output is complete with it."""
        return None


class ModelMeta(Record, frozen=True, kw_only=True):
    """What llama-server adds to its entry of `/v1/models`."""

    n_vocab: Count | None = None
    n_params: Count | None = None


class Architecture(Record, frozen=True, kw_only=True):
    """What a list of models says of one's kind."""

    output_modalities: tuple[Name, ...] | None = None


class ListedModel(Record, frozen=True, kw_only=True):
    """An entry of a list of models."""

    id: Name | None = None
    name: Name | None = None  # Ollama's
    model: Name | None = None
    owned_by: Name | None = None
    state: Name | None = None
    meta: ModelMeta | None = None
    output_modalities: tuple[Name, ...] | None = None
    architecture: Architecture | None = None

    @property
    def writes(self) -> bool:
        """Whether it writes text: models that decide (`/v1/systemone`) do not."""
        listed = self.output_modalities or (self.architecture and self.architecture.output_modalities)
        return not listed or "text" in listed


class Page(Record, frozen=True, kw_only=True):
    """Any page about a server or its models; which one it is, a field tells that only that one has."""

    build_info: Name | None = None  # llama-server's `/props`
    model_alias: Name | None = None
    model_path: Name | None = None
    total_slots: Count | None = None
    chat_template: str | None = None
    bos_token: Name | None = None
    eos_token: Name | None = None
    data: tuple[ListedModel, ...] | None = None  # `/v1/models` and `/api/v0/models`
    models: tuple[ListedModel, ...] | None = None  # `/api/ps` and `/api/tags`
    status: Name | None = None  # `/health` of mlx_lm (ok) and mlx-vlm (healthy, with the model)
    loaded_model: Name | None = None
    version: Name | None = None  # `/api/version`, `/version`


class Timings(Record, frozen=True, kw_only=True):
    """The server's clock and counts, so far in a stream."""

    prompt_n: int | None = None  # below 0 where it has read nothing yet
    prompt_ms: Milliseconds | None = None
    predicted_n: Count | None = None
    predicted_ms: Milliseconds | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class Place(Record, frozen=True, kw_only=True):
    """A token of the output, or one that could have been."""

    id: Token | None = None
    logprob: LogProbability | None = None  # null where it is minus infinity
    top_logprobs: tuple[Place, ...] | None = None  # those that could have been there


class LlamaEvent(Reply, frozen=True, kw_only=True):
    """`/completion`: a piece of a stream, its end, or a whole answer."""

    content: str | None = None
    tokens: tuple[Token, ...] | None = None
    stop: bool | None = None
    stop_type: Name | None = None
    tokens_predicted: Count | None = None
    tokens_evaluated: Count | None = None
    timings: Timings | None = None
    completion_probabilities: tuple[Place, ...] | None = None

    @property
    def text(self) -> str:
        return self.content or ""

    @property
    def added(self) -> object:
        return self.text if self.tokens is None else self.tokens

    @property
    def ended(self) -> object:
        return self.stop


class Tokenized(Reply, frozen=True, kw_only=True):
    """`/tokenize`."""

    tokens: tuple[Token, ...] = ()


_COUNTER = re.compile(r"^(?:llamacpp:|vllm:|rapid_mlx_)(\w{1,200})(?:\{([^}\n]{0,2000})\})? (\S+)", re.MULTILINE)
_PLACE = re.compile(r"\bposition=\"(\d{1,4})\"")
_MOST = 2.0**53
# llama.cpp 26389 took over vLLM's names; Rapid-MLX has its own.
_COUNTED = {
    "tokens_predicted_total": "predicted",
    "spec_decode_num_draft_tokens_total": "proposed",
    "spec_decode_attempts_total": "proposed",
    "spec_decode_num_accepted_tokens_total": "accepted",
    "spec_decode_accepts_total": "accepted",
    "spec_decode_num_drafts_total": "rounds",
}


class Counters(Record, frozen=True, kw_only=True):
    """What a server counted since it started."""

    predicted: int | None = None  # llama-server's: vLLM also counts what it generated and did not answer
    proposed: int | None = None
    accepted: int | None = None
    rounds: int | None = None  # verification steps
    by_position: tuple[int, ...] = ()  # accepted tokens at each place of a draft

    def since(self, before: Counters) -> Counters:
        """What was counted from there to here."""
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in self.__struct_fields__[:-1]}
        grown = {name: None if None in pair else pair[1] - pair[0] for name, pair in pairs.items()}
        was = (*before.by_position, *(0 for _ in self.by_position[len(before.by_position) :]))
        places = tuple(now - then for then, now in zip(was, self.by_position, strict=False))
        return Counters(**grown, by_position=places)


def prometheus(page: str, sender: str) -> Counters:
    """The counters of a page, summed over labels: vLLM has one of each for every engine.

    Raises: ServerError for a counter that is no count.
    """
    plain: dict[str, int] = {}
    places: dict[int, int] = {}
    for name, labels, text in _COUNTER.findall(page):
        place = _PLACE.search(labels)
        of_place = place is not None and name.endswith("per_pos_total")
        if name not in _COUNTED and not of_place:
            continue
        try:
            value = float(text[:40])
        except ValueError:
            value = -1.0
        if not 0 <= value <= _MOST:
            raise ServerError(f"{sender} returned a counter that cannot be used: {name} is {excerpt(text.encode())!r}.")
        if place is not None and of_place:
            at = int(place.group(1))
            places[at] = places.get(at, 0) + int(value)
        else:
            plain[_COUNTED[name]] = plain.get(_COUNTED[name], 0) + int(value)
    return Counters(**plain, by_position=tuple(places[place] for place in sorted(places)))


class Message(Record, frozen=True, kw_only=True):
    """A message, or a piece of one."""

    content: str | None = None


class Places(Record, frozen=True, kw_only=True):
    """`logprobs` of mlx_lm's whole answer."""

    content: tuple[Place, ...] | None = None


class Choice(Record, frozen=True, kw_only=True):
    """One answer, of completions or chat."""

    text: str | None = None
    delta: Message | None = None
    message: Message | None = None
    finish_reason: Name | None = None
    logprobs: Places | None = None
    token_ids: tuple[Token, ...] | None = None  # vLLM's, where they are asked for

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of what it adds, if given: in vLLM's own field, or among mlx_lm's log-probabilities."""
        listed = (self.logprobs and self.logprobs.content) or ()
        return self.token_ids or tuple(one.id for one in listed if one.id is not None)

    @property
    def output(self) -> str:
        """The text, of whichever of the two protocols, whole or a piece."""
        inner = self.delta or self.message
        return self.text or (inner.content if inner else None) or ""


class Completion(Reply, frozen=True, kw_only=True):
    """`/v1/completions` and `/v1/chat/completions`, whole or a piece; the trees differ from server to server."""

    choices: tuple[Choice, ...] | None = None
    usage: Tree = None
    stats: Tree = None
    timings: Tree = None
    metrics: Tree = None
    mtplx_stats: Tree = None
    x_mlx_dspark: Tree = None

    def at(self, path: str, kind: Any) -> Any:
        """What stands at a path like ``usage.completion_tokens``; None where nothing does.

        Raises: ServerError for what is not of that kind.
        """
        first, *rest = path.split(".")
        value = getattr(self, first)
        for name in rest:
            value = value.get(name) if isinstance(value, dict) else None
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as misfit:
            raise ServerError(f"The server's {path} cannot be used: {misfit}.") from misfit

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for choice in self.choices or () for token in choice.tokens)

    @property
    def text(self) -> str:
        return "".join(choice.output for choice in self.choices or ())

    @property
    def added(self) -> object:
        return self.text or self.tokens

    @property
    def ended(self) -> str | None:
        return next((choice.finish_reason for choice in self.choices or () if choice.finish_reason), None)


class OllamaEvent(Reply, frozen=True, kw_only=True):
    """`/api/generate` and `/api/chat`: a line."""

    response: str | None = None
    message: Message | None = None
    done: bool | None = None
    done_reason: Name | None = None
    prompt_eval_count: Count | None = None
    prompt_eval_duration: Nanoseconds | None = None
    eval_count: Count | None = None
    eval_duration: Nanoseconds | None = None

    @property
    def text(self) -> str:
        return self.response or (self.message.content if self.message else None) or ""

    @property
    def ended(self) -> object:
        return self.done

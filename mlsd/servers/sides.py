"""The servers of one call, and what is known of them before anything is timed: models, prompts, first answers."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from mlsd.engine.losslessness import first_difference
from mlsd.errors import InputError, ServerError
from mlsd.models.library import LocalModel
from mlsd.planning.prompts import Prompt
from mlsd.records import DrafterSpec, ModelRef, Record
from mlsd.servers.endpoint import Endpoint, Request, Server, ServerAnswer
from mlsd.servers.launch import Launched
from mlsd.servers.request import ServerRequest

SPECULATION = "speculation"  # the drafter of a server that was not launched: it does not say which
_PREPARING = 10**6  # nonces of requests before anything is timed
_MOST_EARLIER = 64  # answers whose times are remembered
_SHOWN = 24  # characters around the first difference of two texts
_QUEUES = "{0} answers {1} of {2} requests at once, the others wait. Start it with --parallel {2}."
_NOT_TOLD = "The server does not tell of drafted tokens: that it drafts is taken on trust."
_NOTHING_DRAFTED = (
    "No server reports drafted tokens: two plain servers are compared. In llama-server --model-draft alone drafts "
    "nothing, it needs --spec-type too."
)
_CARRIES = (
    "{} carries what it drafted from into the next request: of a new prompt it accepts {} of {} tokens the first time "
    "and {} of {} the second. {}"
)
_CONFUSED = (
    "{} does not repeat itself (from {} on): it writes another text when a prompt comes again, as a server does "
    "that goes on from a faulty memory of the first time."
)
_FACTS = {"model": "model file or quantization", "n_vocab": "vocabulary", "n_parameters": "number of weights"}

Arm = int | None  # place of the server; None: our own loop


@dataclass
class Side:
    """One arm: a server that is there, or one that is launched when it is needed; and what is known of it."""

    spec: DrafterSpec
    gamma: int
    server: Endpoint | Launched
    draft: bool = True  # requests leave drafting on
    must_draft: bool = False  # an answer without a draft is a fault
    carries: bool = False  # what it drafts depends on requests before
    reported: Server | None = None  # by it, of itself
    prompts: dict[str, Request] = field(default_factory=dict)  # by name; none: as the first side takes them
    references: dict[str, ServerAnswer] = field(default_factory=dict)  # by name: its first greedy answers
    prefills: dict[str, ServerAnswer] = field(default_factory=dict)  # by name: the quickest answer of one token
    earlier: deque[ServerAnswer] = field(default_factory=partial(deque, maxlen=_MOST_EARLIER))

    @property
    def endpoint(self) -> Endpoint:
        """The server, started if need be. Raises: ServerError."""
        endpoint = self.server.endpoint if isinstance(self.server, Launched) else self.server
        self.reported = endpoint.server
        return endpoint

    def stop(self) -> str:
        """End one that was launched, which then starts anew; how it had ended by itself."""
        if not isinstance(self.server, Launched):
            return ""
        death = self.server.death
        self.server.stop()
        return death


class ServerModels(Record, frozen=True, kw_only=True):
    """The files behind the servers, where they are known."""

    target: LocalModel | None = None
    drafts: tuple[LocalModel, ...] = ()
    together: bool = True  # memory holds all servers at once

    @property
    def files(self) -> tuple[LocalModel, ...]:
        return tuple(model for model in (self.target, *self.drafts) if model is not None)


class Sides:
    """All sides of one call: the first is plain and the others have its target, or they are rivals."""

    def __init__(
        self, sides: Sequence[Side], wanted: ServerRequest, prompts: Sequence[Prompt], models: ServerModels
    ) -> None:
        self.all, self.wanted, self.models, self.rivals = sides, wanted, models, bool(wanted.rivals)
        self.prompts = {prompt.key: prompt for prompt in prompts}
        self.deterministic = True
        self.notes: list[str] = []

    def note(self, note: str) -> None:
        """Keep a doubt, once."""
        if note not in self.notes:
            self.notes.append(note)

    def use(self, side: Side) -> Endpoint:
        """The side's server; others that lie in memory only while they work are ended first."""
        for other in self.all if not self.models.together else ():
            if other is not side:
                other.stop()
        return side.endpoint

    def request(self, side: Side, name: str, nonce: int) -> Request:
        """The request for a prompt by its name, as it is measured."""
        wanted = self.wanted
        prompt = (side.prompts or self.all[0].prompts)[name]
        return replace(
            prompt, draft=side.draft, nonce=nonce, n_predict=wanted.n_predict, sampling=wanted.sampling,
            ignore_eog=wanted.ignore_eog,
        )  # fmt: skip

    def prepare(self) -> None:
        """Read the prompts, warm every server, and see what each does with the same request twice."""
        first = self.all[0]
        endpoint = self.use(first)
        if self.rivals and any(self.use(side).program.chat_only for side in self.all):
            self.prompts = {key: replace(prompt, chat=True) for key, prompt in self.prompts.items()}
        turns = {name: self._conversation(endpoint, prompt) for name, prompt in self.prompts.items()}
        for side in self.all:
            try:
                other = self.use(side)
                if not self.rivals:
                    _check_same_model(endpoint.server, other.server)
                if self.rivals or side is first:
                    side.prompts = {name: _read(other, prompt, turns[name]) for name, prompt in self.prompts.items()}
                self._answer_twice(side)
                for number, name in enumerate(side.prompts) if self.wanted.sampling.greedy else ():
                    if name not in side.references:
                        side.references[name] = self._answer(side, self.request(side, name, _PREPARING + number))
            except ServerError as error:  # its trials will fail with their reasons, and the others are measured
                if side is first:
                    raise
                self.note(f"{side.spec.name}: {error}")
        self._note_servers()

    def _conversation(self, endpoint: Endpoint, prompt: Prompt) -> tuple[str, ...]:
        """The turns up to and with a prompt, the server's own greedy answers between; none for a plain text."""
        turns: list[str] = []
        for turn in prompt.earlier if prompt.chat else ():
            turns.append(turn)
            request = endpoint.chat(tuple(turns))
            request = replace(request, n_predict=self.wanted.n_predict, ignore_eog=False, draft=False)
            turns.append(endpoint.complete(request).text.strip())
        return (*turns, prompt.text) if prompt.chat else ()

    def _answer(self, side: Side, request: Request) -> ServerAnswer:
        endpoint = self.use(side)
        side.earlier.append(endpoint.settle(request, endpoint.complete(request)))
        return side.earlier[-1]

    def _answer_twice(self, side: Side) -> None:
        """Whether a server repeats itself, and whether its draft remembers requests: then it drafts otherwise.

        The second is asked with a prompt that nobody can have asked before: what a server drafts for one that it knows
        may be what it wrote then (llama.cpp 26100), the first time here as well.
        """
        name = next(iter(self.prompts))
        request = self.request(side, name, _PREPARING)
        request = request if side.prompts else _unseen(self.use(side), request)
        first, second = (self._answer(side, replace(request, nonce=n * _PREPARING)) for n in (1, 2))
        if not self.wanted.sampling.greedy:
            return
        if side.prompts:
            side.references[name] = first
            self.check_repeats(side, first, second)
        elif not self.rivals and (place := apart(first, second)) is not None:
            self.note(_CONFUSED.format(side.spec.name, f"{'token' if first.tokens else 'character'} {place}"))
        counts = [count for answer in (first, second) for count in (answer.accepted, answer.proposed)]
        side.carries = counts[:2] != counts[2:]
        if side.carries:
            launched = isinstance(side.server, Launched)
            then = "It is started anew before each turn." if launched else "Below is a prompt that comes again."
            self.note(_CARRIES.format(side.spec.name, *counts, then))

    def check_repeats(self, side: Side, first: ServerAnswer, second: ServerAnswer) -> None:
        """Note a server that answers one request in two ways."""
        where = apart(first, second)
        if where is None:
            return
        place = f" (from token {where} on)" if first.tokens else ""
        if self.rivals:
            self.note(f"{self.target(self.all.index(side)).id} does not repeat itself{place}.")
        else:
            self.deterministic = False
            self.note(f"The plain server does not repeat itself{place}: only speed can be judged.")

    def _note_servers(self) -> None:
        counts = [(a.proposed, a.accepted) for side in self.all[1:] if not side.must_draft for a in side.earlier]
        if counts and not self.rivals and not any(map(any, counts)):
            self.note(_NOT_TOLD if set(counts) == {(None, None)} else _NOTHING_DRAFTED)
        for side in self.all if self.rivals else self.all[:1]:
            server = side.reported
            if server is None:
                continue
            n_most = max(self.wanted.parallel)
            if server.n_slots is not None and server.n_slots < n_most:
                self.note(_QUEUES.format(server.program, server.n_slots, n_most))
            if server.row.untested:
                self.note(f"{server.words}: read its figures with care.")
            if not server.row.gives_tokens and not self.rivals:
                self.note(f"{server.program} gives no token ids: outputs are compared as text.")
            if all(a.decode_ns is None for other in self.all if other.reported == server for a in other.earlier):
                self.note(
                    f"{server.program} tells no times in its streams: every tok/s is of whole answers, by our clock."
                )

    def server(self, arm: int) -> Server:
        """What answers for an arm, as the first server of a pair describes it."""
        server = self.all[arm if self.rivals else 0].reported
        assert server is not None  # the first has answered, and rivals were asked whether they take plain text
        return server

    def target(self, arm: Arm) -> ModelRef:
        """The target of an arm, named with its server."""
        local = self.models.target
        if arm is None:
            assert local is not None
            return local.ref
        host = self.server(arm)
        # Another name than our own engine's target, so that no table and no export can take one for the other.
        known = ModelRef(id=host.model) if local is None else local.ref
        twins = self.rivals and [self.server(place).words for place in range(len(self.all))].count(host.words) > 1
        return replace(known, id=f"{known.id} @ {host.program}{f' {arm + 1}' if twins else ''}")

    def agreement(self) -> Iterator[str]:
        """Whether each rival writes what the first one does, prompt by prompt, and why it may not."""
        first = self.all[0]
        for arm, side in enumerate(self.all[1:] if self.rivals else (), 1):
            names = [name for name in first.references if name in side.references]
            if not names:
                continue
            pairs = {name: (first.references[name], side.references[name]) for name in names}
            parted = {name: _parted(one.text, other.text) for name, (one, other) in pairs.items()}
            n_same = sum(words is None for words in parted.values())
            yield f"{self.target(arm).id} writes what {self.target(0).id} does on {n_same} of {len(pairs)} prompts."
            yield from (f"{name}: {words}" for name, words in parted.items() if words is not None)
            facts = _differing(self.server(0), self.server(arm))
            why = [f"{_FACTS[name]} ({one} and {other})" for name, one, other in facts]
            read = [answer.n_prompt for answer in pairs[names[0]]]
            if None not in read and read[0] != read[1]:
                why.append(f"tokenizer or template ({names[0]} is {read[0]} tokens and {read[1]})")
            if why:
                yield f"They are not the same: {'; '.join(why)}."


def _read(endpoint: Endpoint, prompt: Prompt, chat: tuple[str, ...]) -> Request:
    """A prompt as the server takes it; exactly `n_tokens` of it where it asks for that.

    Raises: InputError where the server cannot tell tokens and a length in tokens was asked for.
    """
    if chat:
        return replace(endpoint.chat(chat), earlier=chat[1::2])
    tokens = endpoint.tokenize(prompt.text)
    if prompt.n_tokens is not None and len(tokens) < prompt.n_tokens:
        raise InputError(
            f"{endpoint.program.name} cannot cut the prompt {prompt.key} to {prompt.n_tokens} tokens.",
            hint="Give a shorter one, or a whole text.",
        )
    return Request(prompt=tokens[: prompt.n_tokens] or prompt.text)


def _unseen(endpoint: Endpoint, request: Request) -> Request:
    """A request of the same kind and length that begins with the time, so that no server has read it."""
    mark = f"{time.time_ns()}\n"
    if request.messages:
        first, *rest = request.messages
        return replace(request, messages=(mark + first, *rest))
    if isinstance(request.prompt, str):
        return replace(request, prompt=mark + request.prompt[len(mark) :])
    new = endpoint.tokenize(mark)
    return replace(request, prompt=(*new, *request.prompt[len(new) :]))


def _check_same_model(plain: Server, other: Server) -> None:
    for name, one, two in _differing(plain, other):
        if name != "model":  # which may be given by any name
            raise InputError(
                f"The servers hold different models: {plain.model} has {name} {one:,}, {other.model} {two:,}.",
                hint="Start both with the same target; `mlsd server URL URL` compares two models.",
            )


def _differing(one: Server, other: Server) -> list[tuple[str, Any, Any]]:
    """What both tell of their models, where it is not the same."""
    told = [(name, getattr(one, name), getattr(other, name)) for name in _FACTS]
    return [(name, a, b) for name, a, b in told if a is not None and b is not None and a != b]


def apart(one: ServerAnswer, two: ServerAnswer) -> int | None:
    """The first token that differs, or character where there are no tokens; None where all are the same."""
    return first_difference(one.tokens, two.tokens) if one.tokens else first_difference(one.text, two.text)


def _parted(one: str, other: str) -> str | None:
    """Where two texts part; None where they are the same."""
    place = first_difference(one, other)
    if place is None:
        return None
    ends = (text[place : place + _SHOWN] or "(its end)" for text in (one, other))
    return f"the texts part after {place} characters, at {' and '.join(map(repr, ends))}"

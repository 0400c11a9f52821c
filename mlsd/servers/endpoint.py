"""One request in, one answer out with its clocks and counts, whatever program serves: read as its row says."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from msgspec.structs import replace

from mlsd.engine.llama.chat import in_turn, render
from mlsd.errors import ServerError
from mlsd.outside import Count, Name, parse
from mlsd.records import Named, Record, Round, Sampling
from mlsd.redact import redact
from mlsd.servers import programs
from mlsd.servers.connection import CLOCK, Connection, Tell, Tree
from mlsd.servers.programs import PROGRAMS, Counters, Program, parse_counters, read_value, value_at

_SLOWEST_PREFILL_TOK_S, _MOST_PREFILL_S = 10.0, 600.0
_EVENTS_PER_TOKEN, _MORE_EVENTS = 2, 64  # a piece a token; roles, counts and progress besides
_SETTLED_S, _SETTLES = 0.05, 20  # vLLM counts a moment after it has answered
_START_S = 0.1
_PARTS = {"draft_ns": 0, "verify_ns": 0, "rollback_ns": 0, "sample_ns": 0}  # of a round, which no server tells


class Server(Named, frozen=True, kw_only=True):
    """What answers at a URL, as it describes itself."""

    program: Program
    build: str = ""
    model: str = ""  # file name or id, never a folder
    n_vocab: int | None = None
    n_parameters: int | None = None
    n_slots: int | None = None  # requests that it answers at once; further ones wait

    @property
    def description(self) -> str:
        """Program and build."""
        note = " (untested: from recorded exchanges)" if self.program.untested else ""
        return f"{self.program.name} {self.build}".strip() + note


class Request(Record, frozen=True, kw_only=True):
    """One completion to ask for, of a prompt as this server takes it."""

    prompt: tuple[int, ...] | str = ""  # tokens where the server takes them
    messages: tuple[str, ...] = ()  # user, assistant, user ... in place of the prompt: the server puts its template on
    earlier: tuple[str, ...] = ()  # the target's own answers inside the prompt
    n_predict: int = 0
    sampling: Sampling = Sampling()
    ignore_eog: bool = True
    draft: bool = True  # False: without drafting, where a request can say so
    n_probs: int = 0  # candidates to tell of each token
    keep: bool = False  # go on from what the server remembers of a prompt with the same beginning
    nonce: int = 0  # makes the request another one to whoever would answer it from a cache

    @property
    def n_prompt(self) -> int:
        """Tokens to read, at most: a token has a byte at least."""
        if isinstance(self.prompt, tuple) and not self.messages:
            return len(self.prompt)
        return sum(len(text.encode()) for text in self.messages or (str(self.prompt),))


class ServerAnswer(Record, frozen=True, kw_only=True):
    """What came back, and when; times that nobody measured are None."""

    tokens: tuple[int, ...] = ()  # empty where the server gives none
    text: str = ""
    n_tokens: int  # as the server counts; 0: not yet known
    n_prompt: int | None = None
    n_processed: int | None = None  # prompt tokens that were not remembered
    ended: bool = False  # the model ended the output itself
    prompt_ns: int | None = None  # the server's clock
    decode_ns: int | None = None  # from the first token to the last
    first_ns: int | None = None  # the client's clock: from sending the request to the first piece of output
    total_ns: int = 0  # from sending to the last byte
    proposed: int | None = None
    accepted: int | None = None
    n_rounds: int | None = None  # verification steps
    by_accepted: tuple[int, ...] = ()  # rounds in which so many tokens were accepted
    rounds: tuple[Round, ...] = ()  # where the server reports each
    # Log-probabilities of each output token, the chosen one first; by token id, or by text where there are no ids.
    candidates: tuple[dict[int | str, float], ...] = ()


class Endpoint:
    """A server at a URL, and the row that says how it is asked. All raise ServerError."""

    def __init__(
        self, connection: Connection, server: Server, pages: Mapping[str, Tree], model: str, draft: str | None
    ) -> None:
        """`model` and `draft` are named in requests; `pages` are those it tells of itself."""
        self.url, self.program, self.server = connection.url, server.program, server
        self._connection, self._pages, self._model, self._draft = connection, pages, model, draft
        self._whole: dict[object, ServerAnswer] = {}  # whole answers, by request and text

    @property
    def switches(self) -> bool:
        """Whether one request can leave drafting off."""
        return bool(self.program.plain) or (self.program.names_draft and self._draft is not None)

    def _names_draft(self, request: Request) -> bool:
        return self._draft is not None and request.draft and "draft" in self.program.asks

    # --- prompts --------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, bos: bool = True, special: bool = False) -> tuple[int, ...]:
        """As the server would tokenize the text itself; nothing where it cannot tell."""
        if self.program.tokenizes is None:
            return ()
        flags = (
            {"add_special": bos, "parse_special": special} if self.program.takes_template else {"model": self._model}
        )
        return self._tokens_of({self.program.tokenizes: text, **flags})

    def chat(self, messages: tuple[str, ...]) -> Request:
        """A conversation as a prompt, the model's template put on exactly once: by the server, if not here."""
        if self.program.tokenizes is None:
            return Request(messages=messages)
        if not self.program.takes_template:
            body = {"model": self._model, "messages": _as_chat(messages), "add_generation_prompt": True}
            return Request(prompt=self._tokens_of(body))
        props = self._pages["/props"]
        template, bos, eos = (
            read_value(props, name, str, self.url) or "" for name in ("chat_template", "bos_token", "eos_token")
        )
        if not template:
            return Request(prompt=self.tokenize("\n\n".join(messages)))
        text = render(template, in_turn(messages), bos=bos, eos=eos)  # the server's own clock would date it
        # Most templates write the BOS token themselves, and the tokenizer must not repeat it.
        return Request(prompt=self.tokenize(text, bos=not (bos and text.startswith(bos)), special=True))

    def _tokens_of(self, body: Tree) -> tuple[int, ...]:
        tokens: tuple[int, ...] | None = self._read(self._connection.post("/tokenize", body), "tokens", programs.Tokens)
        return tokens or ()

    # --- answers --------------------------------------------------------------------------------------------------

    def complete(self, request: Request) -> ServerAnswer:
        """An answer as it streams in; at once where candidates are asked for, or nothing."""
        if (request.n_probs or not request.n_predict) and self.program.takes_template:
            return self.whole(request)
        path, body = self._body(request, stream=True)
        # How long a server may read so many tokens before its first one, whatever else it sends.
        prefill_s = min(_MOST_PREFILL_S, request.n_prompt / _SLOWEST_PREFILL_TOK_S)
        most_events = _EVENTS_PER_TOKEN * request.n_predict + _MORE_EVENTS
        sent_ns = CLOCK.now_ns()
        arrived = self._connection.stream(path, body, prefill_s, most_events, self._added)
        total_ns = CLOCK.now_ns() - sent_ns
        events = [event for _, event in arrived if event is not None]
        if len(events) == len(arrived) and not any(value_at(event, over) for event in events for over in programs.OVER):
            raise ServerError(
                f"The stream of {self.program.name} at {self.url} ended after {len(events)} pieces: half an answer.",
                hint=self.program.breaks_off,
            )
        first_ns = next((ns - sent_ns for ns, event in arrived if event is not None and self._added(event)), None)
        return self._answer(events, first_ns, total_ns)

    def whole(self, request: Request) -> ServerAnswer:
        """An answer that comes at once, with all that only such a one tells."""
        path, body = self._body(request, stream=False)
        sent_ns = CLOCK.now_ns()
        event = self._connection.post(path, body)
        answer = self._answer([event], None, CLOCK.now_ns() - sent_ns)
        if not answer.n_tokens and request.n_predict:
            raise ServerError("The server does not say how many tokens it wrote, and pieces of text are not tokens.")
        return answer

    def settle(self, request: Request, answer: ServerAnswer) -> ServerAnswer:
        """The answer with the ids and counts that its stream let out, as a whole one of the same text tells them.

        Asked for once for each text, outside of what is timed. llama-server has no event for a token that ends inside
        a character, and LM Studio's streams do not tell what was drafted.
        """
        by_ids = not self.program.gives_tokens or len(answer.tokens) == answer.n_tokens
        if answer.n_tokens and by_ids and not self._names_draft(request):
            return answer
        key = (request.prompt, request.messages, request.n_predict, request.sampling, request.draft, answer.text)
        if key not in self._whole:
            again = self.whole(request)
            if again.text != answer.text or (answer.n_tokens and again.n_tokens != answer.n_tokens):
                raise ServerError("Asked again for what its stream let out, the server wrote something else.")
            self._whole[key] = again
        again = self._whole[key]
        drafted = ("proposed", "accepted") if answer.accepted is None else ()
        names = ("tokens", "n_tokens", "n_prompt", "ended", *drafted)
        return replace(answer, **{name: getattr(again, name) for name in names})

    def counters(self) -> Counters | None:
        """What `/metrics` counts, once it has settled; None where nothing is counted."""
        counted = None
        for _ in range(_SETTLES if self.program.has_counters else 0):
            before = counted
            page = self._connection.get("/metrics")
            counted = parse_counters(redact(page.decode("utf-8", "replace")), f"{self.url}/metrics")
            if counted == before or self.program.counts_all:
                break
            time.sleep(_SETTLED_S)
        return counted if counted and ("proposed" in counted or self.program.counts_all) else None

    def close(self) -> None:
        self._connection.close()

    # --- by the row -----------------------------------------------------------------------------------------------

    def _body(self, request: Request, *, stream: bool) -> tuple[str, Tree]:
        """The path and what to send there."""
        program, sampling = self.program, request.sampling
        messages = request.messages or ((str(request.prompt),) if program.chat_only else ())
        asked = {  # what is None is not asked for
            "model": self._model,
            "messages": _as_chat(messages) if messages else None,
            "prompt": None if messages else request.prompt,
            "n_predict": request.n_predict,
            "stream": stream,
            "temperature": sampling.temperature,
            "seed": sampling.seed + request.nonce,
            "top_k": None if sampling.greedy else sampling.top_k,
            "top_p": None if sampling.greedy else sampling.top_p,
            "min_p": None if sampling.greedy else 0.0,
            "draft": self._draft if self._names_draft(request) else None,
            "ignore_eog": request.ignore_eog,
            "keep": request.keep,
            "n_probs": request.n_probs or None,
            # One of its own keeps a request from what a cache of beginnings remembers of others.
            "salt": None if request.keep else f"{request.nonce} {time.monotonic_ns()}",
        }
        settings = {**program.always, **(program.streamed if stream else program.whole)}
        settings |= {} if request.draft else program.plain
        settings |= {} if messages else program.raw
        settings |= program.with_candidates if request.n_probs else {}
        settings |= {path: asked[name] for name, path in program.asks.items() if asked[name] is not None}
        body: Tree = {}
        for path, value in settings.items():
            programs.set_value(body, path, value)
        return (program.chats if messages else program.completions), body

    def _read(self, event: Tree, path: str, kind: Any) -> Any:
        return read_value(event, path, kind, f"The answer of {self.url}{self.program.completions}")

    def _added(self, event: Tree) -> object:
        """What an event adds to the output, as a sign of life."""
        ids = [value_at(event, path) for path in programs.TOKENS if value_at(event, path) is not None]
        return ids[0] if ids else self._any(event, programs.TEXT, str)

    def _any(self, event: Tree, paths: Sequence[str], kind: Any) -> Any:
        """What stands at the first of these paths that has anything in it."""
        values = (self._read(event, path, kind) for path in paths)
        return next((value for value in values if value), None)

    def _last(self, events: Sequence[Tree], paths: Sequence[str], kind: Any) -> Any:
        """What the last event that has any of these paths says at the first of them."""
        values = (self._read(event, path, kind) for path in paths for event in reversed(events))
        return next((value for value in values if value is not None), None)

    def _answer(self, events: Sequence[Tree], first_ns: int | None, total_ns: int) -> ServerAnswer:
        counts = {name: _sum(self._last(events, paths, programs.Sum)) for name, paths in programs.COUNTS.items()}
        n_tokens, n_cached, rejected = (counts.pop(name) for name in ("n_tokens", "n_cached", "rejected"))
        if self.program.counts_all:
            counts |= {name: counts[name] or 0 for name in ("proposed", "accepted")}
        if counts["proposed"] is None and rejected is not None:
            counts["proposed"] = (counts["accepted"] or 0) + rejected
        processed = self._last(events, (programs.PROCESSED,), int) if self.program.counts_all else None
        if n_cached is not None and counts["n_prompt"] is not None:
            processed = counts["n_prompt"] - n_cached
        clocks = {}
        for name, units in programs.CLOCKS.items():
            times = ((self._last(events, (path,), programs.Span), ns) for path, ns in units)
            clocks[name] = next((round(value * ns) for value, ns in times if value is not None), None)
        ids = programs.TOKENS if self.program.gives_tokens else ()
        scores = programs.SCORES if self.program.gives_probabilities else ()
        listed = (self._any(event, scores, tuple[programs.ScoredToken, ...]) or () for event in events)
        return ServerAnswer(
            text=redact("".join(self._any(event, programs.TEXT, str) or "" for event in events)),
            tokens=tuple(token for event in events for token in self._any(event, ids, programs.Tokens) or ()),
            n_tokens=n_tokens or 0,
            n_processed=processed,
            ended=self._last(events, programs.REASON, Name) in programs.BY_ITSELF,
            first_ns=first_ns,
            total_ns=total_ns,
            by_accepted=self._last(events, (programs.BY_ACCEPTED,), tuple[Count, ...]) or (),
            rounds=self._rounds(events, n_tokens or 0, counts["proposed"] or 0, counts["accepted"] or 0),
            candidates=tuple(token.candidates() for event in listed for token in event),
            **counts,
            **clocks,
        )

    def _rounds(self, events: Sequence[Tree], n_tokens: int, proposed: int, accepted: int) -> tuple[Round, ...]:
        if not (self.program.counts_all and proposed and len(events) > 1):
            return ()
        steps = (self._read(event, "timings", programs.Timings) for event in events)
        return rounds([step for step in steps if step is not None], n_tokens, proposed, accepted)


def rounds(steps: Sequence[programs.Timings], n_tokens: int, n_proposed: int, n_accepted: int) -> tuple[Round, ...]:
    """Each target pass from the running counts of a stream, or none where events are missing between two passes.

    Tokens of one pass carry one time of the server's clock. Of a pass only its whole length is known: `other_ns`. After
    a rejection a server that cannot roll back decodes the accepted tokens again, with the target's own behind them:
    that is a second pass, which proposes nothing and commits one token more; its time stands with the first's.
    """
    passes: list[Round] = []
    before = programs.Timings(predicted_n=1)  # the first token is the prompt's
    for now in {step.predicted_ms: step for step in steps}.values():
        if now.predicted_n <= 1:
            continue
        committed, proposed, accepted = (
            getattr(now, name) - getattr(before, name) for name in ("predicted_n", "draft_n", "draft_n_accepted")
        )
        wall_ns = round(1e6 * (now.predicted_ms - before.predicted_ms))
        if min(wall_ns, proposed, accepted) < 0 or accepted > proposed:
            return ()
        replayed = committed == accepted + 2
        last = now.predicted_n == n_tokens and 0 < committed <= accepted + 1
        if not (replayed or last or committed == accepted + 1):
            return ()
        first = {"proposed": proposed, "accepted": accepted, "committed": committed - replayed, "rows": 1 + proposed}
        passes.append(Round(**first, other_ns=wall_ns, **_PARTS))
        if replayed:
            passes.append(Round(proposed=0, accepted=0, committed=1, rows=1 + accepted + 1, other_ns=0, **_PARTS))
        before = now
    whole = sum(r.proposed for r in passes), sum(r.accepted for r in passes), sum(r.committed for r in passes)
    return tuple(passes) if whole == (n_proposed, n_accepted, n_tokens - 1) else ()


def _sum(value: Any) -> int | None:
    """Of several counts the sum."""
    value = tuple(value.values()) if isinstance(value, dict) else value
    return sum(value) if isinstance(value, tuple) else value


def _as_chat(messages: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]


# --- which program it is ------------------------------------------------------------------------------------------


def connect(url: str, patience_s: float, draft: str | None = None, tell: Tell | None = None) -> Endpoint:
    """The server at a URL that `check_url` passed, asked what it is. `draft` names the draft model of requests.

    Raises: ServerError when nothing answers, or in no protocol that is known.
    """
    connection = Connection(url, patience_s, tell)
    try:
        return _identify(connection, draft)
    except BaseException:
        connection.close()
        raise


def _identify(connection: Connection, draft: str | None) -> Endpoint:
    pages: dict[str, Tree] = {}

    def page(path: str) -> Tree:
        if path not in pages:
            body = connection.get(path)
            is_json = body.lstrip().startswith(b"{")  # a page for people tells us nothing
            pages[path] = parse(body, dict[str, Any], connection.url + path, ServerError) if is_json else {}
        return pages[path]

    for program in PROGRAMS:
        value = value_at(page(program.page), program.path)
        if value is None or (program.value is not None and value != program.value):
            continue
        listed: list[Any] = next(
            (
                models
                for path in program.models
                for name in ("data", "models")
                if (models := value_at(page(path), name))
            ),
            [],
        )
        named = [read_value(page(path), field, Name, connection.url + path) for path, field in program.model]
        named += programs.names_of(listed, connection.url)
        names = [name for name in named if name]
        if not names and program.sent_as is None:
            raise ServerError(
                f"{connection.url} has no model loaded that writes text.", hint="Load the one to measure."
            )
        model = names[0] if program.sent_as is None else _served(names)
        facts = {
            name: read_value(page(path), field, Name if name == "build" else Count, connection.url + path)
            for name, (path, field) in program.facts.items()
        }
        facts = {name: value for name, value in facts.items() if value is not None}
        server = Server(program=program, model=PurePath(model).name.removesuffix(".gguf"), **facts)
        return Endpoint(connection, server, pages, program.sent_as or model, draft)
    raise ServerError(
        f"{connection.url} answers, but speaks no protocol that mlsd knows.",
        hint=f"Known: {', '.join(program.name for program in PROGRAMS)}.",
    )


def _served(names: Sequence[str]) -> str:
    """What mlx_lm.server serves: it lists what the machine has downloaded, and last the folder that it was given."""
    return names[-1] if names and (len(names) == 1 or names[-1].startswith("/")) else "unnamed model"


def wait_for(url: str, patience_s: float, alive: Callable[[], bool], tell: Tell | None = None) -> Endpoint:
    """The server that is starting at `url`; `alive` tells whether its process still runs.

    Raises: ServerError when it died or did not answer in time.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return connect(url, patience_s, tell=tell)
        except ServerError as error:
            if not alive() or time.monotonic() > deadline:
                raise ServerError(f"The server did not come up: {error.message}", hint=error.hint) from error
        time.sleep(_START_S)

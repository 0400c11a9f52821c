"""What mlsd needs of a server, whatever its protocol: one request in, one answer out with its clocks and counts."""

from collections.abc import Sequence
from typing import Any

import msgspec

from mlsd.errors import ServerError
from mlsd.records import Named, Record, Round, Sampling
from mlsd.redact import redact
from mlsd.servers.connection import CLOCK, Connection
from mlsd.servers.protocols import Counters, Reply

_SLOWEST_PREFILL_TOK_S, _MOST_PREFILL_S = 10.0, 600.0
_BREAKS_OFF = {"llama-cpp-python": "It does so where its speculation fails: look at its log."}
_EVENTS_PER_TOKEN, _MORE_EVENTS = 2, 64  # a piece a token; roles, counts and progress besides


class Server(Named, frozen=True, kw_only=True):
    """What answers at a URL, as it describes itself."""

    program: str  # "llama-server", "mlx_lm.server", ...
    build: str = ""
    model: str = ""  # file name or id, never a folder
    n_vocab: int | None = None
    n_parameters: int | None = None
    gives_tokens: bool = False  # else outputs are compared as text
    gives_probabilities: bool = False  # else a difference is never a near tie
    has_clock: bool = False  # it times its own decoding; else the client's clock stands in
    forgets: bool = False  # it can be told to remember nothing of a prompt
    switches: bool = False  # one request can leave drafting off
    names_draft: bool = False  # a request drafts with the model that it names, and with none where it names none
    n_slots: int | None = None  # requests that it answers at once; further ones wait
    chat_only: bool = False  # it takes conversations, no plain text
    untested: bool = False  # written from recorded exchanges, never tried on a real one

    @property
    def words(self) -> str:
        """Program and build."""
        note = " (untested: from recorded exchanges)" if self.untested else ""
        return f"{self.program} {self.build}".strip() + note


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
    token_at: dict[int, int] = msgspec.field(default_factory=dict)  # token ids by place, where a stream lets some out
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
    candidates: tuple[dict[int, float], ...] = ()  # log-probabilities by token id, of each output token


class Endpoint:
    """A server at a URL, which answers with one kind of event. All raise ServerError; `server` says what it cannot."""

    server: Server
    kind: type[Reply]

    def __init__(self, connection: Connection) -> None:
        self.url, self._connection = connection.url, connection

    def tokenize(self, text: str) -> tuple[int, ...]:
        return ()

    def chat(self, messages: tuple[str, ...]) -> Request:
        """A conversation as a prompt, the model's template put on exactly once: by the server, if not here."""
        return Request(messages=messages)

    def complete(self, request: Request) -> ServerAnswer:
        """An answer as it streams in."""
        path, body = self._body(request, stream=True)
        sent_ns = CLOCK.now_ns()
        first_ns, ended = None, False
        events = list[Reply]()
        # How long a server may read so many tokens before its first one, whatever else it sends.
        prefill_s = min(_MOST_PREFILL_S, request.n_prompt / _SLOWEST_PREFILL_TOK_S)
        for now_ns, event in self._connection.stream(path, body, self.kind, prefill_s):
            ended = ended or event is None or bool(event.ended)
            if event is None:
                continue
            events.append(event)
            if event.added:
                first_ns = first_ns or now_ns
            if len(events) > _EVENTS_PER_TOKEN * request.n_predict + _MORE_EVENTS:
                raise ServerError(
                    f"{self.url} sent {len(events)} events where {request.n_predict} tokens were asked for."
                )
        if not ended:
            raise ServerError(
                f"The stream of {self.server.program} at {self.url} ended after {len(events)} pieces: half an answer.",
                hint=_BREAKS_OFF.get(self.server.program, "Look at its log."),
            )
        return self._read(events, sent_ns, None if first_ns is None else first_ns - sent_ns)

    def whole(self, request: Request) -> ServerAnswer:
        """An answer that comes at once, with all that only such a one tells."""
        path, body = self._body(request, stream=False)
        sent_ns = CLOCK.now_ns()
        return self._read([self._connection.post(path, body, self.kind)], sent_ns, whole=True)

    def _read(
        self, events: Sequence[Reply], sent_ns: int, first_ns: int | None = None, *, whole: bool = False
    ) -> ServerAnswer:
        text, total_ns = redact("".join(event.text for event in events)), CLOCK.now_ns() - sent_ns
        told = {"n_tokens": 0, **self._told(events, whole=whole)}
        return ServerAnswer(text=text, first_ns=first_ns, total_ns=total_ns, **told)

    def settle(self, request: Request, answer: ServerAnswer) -> ServerAnswer:
        """The answer with what its stream let out."""
        return answer

    def counters(self) -> Counters | None:
        return None

    def close(self) -> None:
        self._connection.close()

    def _body(self, request: Request, *, stream: bool) -> tuple[str, dict[str, Any]]:
        """The path and what to send there."""
        raise NotImplementedError

    def _told(self, events: Sequence[Any], *, whole: bool) -> dict[str, Any]:
        """The fields of a `ServerAnswer` that the events of a stream, or a whole answer, tell."""
        raise NotImplementedError


def as_chat(messages: tuple[str, ...]) -> list[dict[str, str]]:
    """A conversation as every protocol writes it."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]


def nanoseconds(ms: float | None) -> int | None:
    """Of milliseconds."""
    return None if ms is None else round(1e6 * ms)

"""llama-server's native protocol: token ids in and out, its clock, its counters, and each round as it happens."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from msgspec.structs import replace

from mlsd.engine.llama.chat import in_turn, render
from mlsd.errors import ServerError
from mlsd.records import Round
from mlsd.servers.connection import Connection
from mlsd.servers.endpoint import Endpoint, Request, Server, ServerAnswer, nanoseconds
from mlsd.servers.protocols import Counters, ListedModel, LlamaEvent, ModelMeta, Page, Timings, Tokenized

_UNTOLD = {"draft_ns": 0, "verify_ns": 0, "rollback_ns": 0, "sample_ns": 0}  # the parts of a round


class LlamaServer(Endpoint):
    """An endpoint that speaks the protocol of llama.cpp's own server."""

    kind = LlamaEvent

    def __init__(self, connection: Connection, props: Page) -> None:
        super().__init__(connection)
        self._props = props
        self._known: dict[object, tuple[int, ...]] = {}  # ids of outputs that were asked for whole, by request and text
        listed = connection.get("/v1/models", "data")
        written = [model for model in (listed and listed.data) or () if model.writes]
        meta = (written[0] if written else ListedModel()).meta or ModelMeta()
        name = props.model_alias or props.model_path or "model"
        self.server = Server(
            program="llama-server",
            build=props.build_info or "",
            model=PurePath(name).name.removesuffix(".gguf"),
            n_vocab=meta.n_vocab,
            n_parameters=meta.n_params,
            n_slots=props.total_slots,
            gives_tokens=True,
            gives_probabilities=True,
            has_clock=True,
            forgets=True,
        )

    def tokenize(self, text: str, *, bos: bool = True, special: bool = False) -> tuple[int, ...]:
        """As the server would tokenize the text itself, a BOS token in front where the model has one."""
        body = {"content": text, "add_special": bos, "parse_special": special}
        return self._connection.post("/tokenize", body, Tokenized).tokens

    def chat(self, messages: tuple[str, ...]) -> Request:
        """The template that the server has, put on here, as on every prompt: the server's own clock would date it."""
        props = self._props
        if not props.chat_template:
            return Request(prompt=self.tokenize("\n\n".join(messages)))
        bos = props.bos_token or ""
        text = render(props.chat_template, in_turn(messages), bos=bos, eos=props.eos_token or "")
        # Most templates write the BOS token themselves, and the tokenizer must not repeat it.
        return Request(prompt=self.tokenize(text, bos=not (bos and text.startswith(bos)), special=True))

    def complete(self, request: Request) -> ServerAnswer:
        return self.whole(request) if request.n_probs or not request.n_predict else super().complete(request)

    def settle(self, request: Request, answer: ServerAnswer) -> ServerAnswer:
        """The ids that the stream let out: it has no event for a token that ends inside a character."""
        if len(answer.token_at) == answer.n_tokens:
            return replace(answer, tokens=tuple(answer.token_at[place] for place in range(answer.n_tokens)))
        key = (request.prompt, request.sampling, request.n_predict, answer.text)
        if key not in self._known:
            again = self.whole(request)
            if again.n_tokens != answer.n_tokens or again.text != answer.text:
                raise ServerError("Asked again for its token ids, the server wrote something else.")
            self._known[key] = again.tokens
        return replace(answer, tokens=tuple(answer.token_at.get(i, token) for i, token in enumerate(self._known[key])))

    def _body(self, request: Request, *, stream: bool) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        return "/completion", {
            "prompt": list(request.prompt) if isinstance(request.prompt, tuple) else request.prompt,
            "n_predict": request.n_predict,
            "temperature": sampling.temperature,
            **({} if sampling.greedy else {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": 0.0}),
            "seed": sampling.seed + request.nonce,
            "ignore_eos": request.ignore_eog,
            "cache_prompt": request.keep,
            "return_tokens": True,
            "n_probs": request.n_probs,
            "stream": stream,
            "timings_per_token": stream,
        }

    def _told(self, events: Sequence[LlamaEvent], *, whole: bool) -> dict[str, Any]:
        """Ids by place of a stream, as far as it has events for them; of a whole answer all, and their candidates."""
        final = next((event for event in events[::-1] if event.stop or whole), None)
        if final is None:
            raise ServerError(f"The stream of {self.url} ended without its counts: half an answer.")
        timings = final.timings or Timings()
        n_tokens = final.tokens_predicted or timings.predicted_n or 0
        proposed, accepted = timings.draft_n or 0, timings.draft_n_accepted or 0
        told = {
            "n_tokens": n_tokens,
            "n_prompt": final.tokens_evaluated,
            "n_processed": timings.prompt_n,
            "ended": final.stop_type == "eos",
            "prompt_ns": nanoseconds(timings.prompt_ms),
            "decode_ns": nanoseconds(timings.predicted_ms),
            "proposed": proposed,
            "accepted": accepted,
        }
        if whole:
            places = (place.top_logprobs or () for place in final.completion_probabilities or ())
            candidates = (
                {top.id: top.logprob for top in tops if top.id is not None and top.logprob is not None}
                for tops in places
            )
            return {**told, "tokens": final.tokens or (), "candidates": tuple(candidates)}
        at = [(event.timings.predicted_n, event) for event in events if event.timings and event.timings.predicted_n]
        steps = [event.timings for event in events if event.timings is not None]
        return {
            **told,
            "token_at": {n - 1: event.tokens[-1] for n, event in at if event.tokens and n <= n_tokens},
            "rounds": rounds(steps, n_tokens, proposed, accepted) if proposed else (),
        }

    def counters(self) -> Counters | None:
        """What `/metrics` counts; None where the server was started without it."""
        counted = self._connection.counters()
        return None if counted == Counters() else counted


def rounds(events: Sequence[Timings], n_tokens: int, n_proposed: int, n_accepted: int) -> tuple[Round, ...]:
    """Each target pass from the running counts of a stream, or none where events are missing between two passes.

    Tokens of one pass carry one time of the server's clock. Of a pass only its whole length is known: `other_ns`. After
    a rejection a server that cannot roll back decodes the accepted tokens again, with the target's own behind them:
    that is a second pass, which proposes nothing and commits one token more; its time stands with the first's.
    """
    made: list[Round] = []
    before = (1, 0, 0, 0.0)  # tokens, proposed, accepted, ms: the first token is the prompt's
    last: dict[float, tuple[int, int, int, float]] = {}
    for event in events:
        ms = event.predicted_ms or 0.0
        last[ms] = (event.predicted_n or 0, event.draft_n or 0, event.draft_n_accepted or 0, ms)
    for now in last.values():
        if now[0] <= 1:
            continue
        committed, proposed, accepted = (a - b for a, b in zip(now[:3], before[:3], strict=True))
        wall_ns = round(1e6 * (now[3] - before[3]))
        if min(wall_ns, proposed, accepted) < 0 or accepted > proposed:
            return ()
        ended = now[0] == n_tokens
        replayed = committed == accepted + 2
        if not (replayed or committed == accepted + 1 or (ended and 0 < committed <= accepted + 1)):
            return ()
        first = {"proposed": proposed, "accepted": accepted, "committed": committed - replayed, "rows": 1 + proposed}
        made.append(Round(**first, other_ns=wall_ns, **_UNTOLD))
        if replayed:
            made.append(Round(proposed=0, accepted=0, committed=1, rows=1 + accepted + 1, other_ns=0, **_UNTOLD))
        before = now
    whole = sum(r.proposed for r in made), sum(r.accepted for r in made), sum(r.committed for r in made)
    return tuple(made) if whole == (n_proposed, n_accepted, n_tokens - 1) else ()

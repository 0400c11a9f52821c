"""A whole request of so many tokens in and out: time to first token, its time, and from where on drafting pays."""

from mlsd.errors import InputError
from mlsd.records import Record
from mlsd.stats import Interval
from mlsd.trials.sums import break_even_tokens


class Request(Record, frozen=True, kw_only=True):
    """What is asked of the model."""

    prompt_tokens: int
    n_predict: int

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.n_predict < 1:
            raise InputError("A request has at least one token in and one out: --prompt-tokens, --n-predict.")


class WholeRequest(Record, frozen=True, kw_only=True):
    """What a request takes with one setting; None where prefill is not known."""

    ttft_s: float | None  # time to first token: reading the prompt, the draft's reading included
    whole_s: Interval | None
    pays_from: int | None  # the output token from which on it beats plain decoding; None: never, or plain itself
    pays_from_latest: int | None  # the same at the low end of the speedup; None: there never, or it has none


def whole_request(
    request: Request, tok_s: Interval, speedup: Interval, prefill_ms: float | None, plain_prefill_ms: float | None
) -> WholeRequest:
    """From a setting's decode tok/s and speedup, and ms a prompt token of it and of plain decoding."""
    if prefill_ms is None or plain_prefill_ms is None:
        return WholeRequest(ttft_s=None, whole_s=None, pays_from=None, pays_from_latest=None)
    ttft, later = (request.prompt_tokens * ms / 1e3 for ms in (prefill_ms, prefill_ms - plain_prefill_ms))
    n = request.n_predict - 1

    def whole(speed: float) -> float:
        return ttft + n / speed

    def pays_from(x: float) -> int | None:
        found = break_even_tokens(later, tok_s.value / speedup.value, x)
        return None if found is None else 1 + int(found)

    return WholeRequest(
        ttft_s=ttft,
        whole_s=Interval(
            value=whole(tok_s.value),
            low=None if tok_s.high is None else whole(tok_s.high),
            high=None if tok_s.low is None else whole(tok_s.low),
        ),
        pays_from=pays_from(speedup.value),
        pays_from_latest=None if speedup.low is None else pays_from(speedup.low),
    )

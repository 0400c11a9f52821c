"""What a server reports of an answer, held against what can be: its clock, its counts, its memory of other requests."""

import itertools
from collections.abc import Iterable, Iterator

from mlsd.servers.endpoint import Request, ServerAnswer
from mlsd.servers.programs import Counters
from mlsd.units import NS_PER_MS

_CLOCKS = 0.9  # of the time that a server claims, at least so much must have passed here
_CONFIRMED = 0.05  # of the time that passed here, the server's may differ by so much
_TICK_NS = 2_000_000  # below it clocks and buffers decide


def impossible(
    request: Request,
    answer: ServerAnswer,
    gamma: int,
    grown: Counters | None = None,
    earlier: Iterable[ServerAnswer] = (),
) -> str | None:
    """Why this answer cannot be what the server says it is, or None.

    `gamma` is the most tokens it may draft a round, 0 where nobody knows; `grown` is what its own counters grew by
    around the answer, where nothing else was sent meanwhile; `earlier` are other answers to such requests.
    """
    reasons = itertools.chain(
        _lengths(request, answer), _counts(answer, gamma), _counters(answer, grown or {}), _times(answer, earlier)
    )
    return next(reasons, None)


def _lengths(request: Request, answer: ServerAnswer) -> Iterator[str]:
    wrote, wanted, sent = answer.n_tokens, request.n_predict, len(request.prompt)
    if wrote > wanted:
        yield f"it wrote {wrote} tokens where {wanted} were asked for"
    elif wrote < wanted and answer.ended and request.ignore_eog:
        end = "this server cannot be told to go on: use --stop-at-eog"
        yield f"the model ended it after {wrote} of {wanted} tokens, and {end}"
    elif wrote < wanted and not answer.ended:
        yield f"it wrote {wrote} of {wanted} tokens: the server limits them, or its context is full"
    if isinstance(request.prompt, str) or request.messages or answer.n_prompt is None:
        return
    if answer.n_prompt != sent:
        yield f"it read {answer.n_prompt} prompt tokens where {sent} were sent: a template or a BOS token came on top"
    elif not request.keep and answer.n_processed is not None and answer.n_processed < sent:
        yield f"it remembered {sent - answer.n_processed} of {sent} prompt tokens that it was told to forget"


def _counts(answer: ServerAnswer, gamma: int) -> Iterator[str]:
    """Accepted tokens are proposed ones and part of the output; each round has one token that was not drafted."""
    proposed, accepted = answer.proposed, answer.accepted
    if not proposed or accepted is None:
        return
    if accepted > proposed:
        yield f"it reports {accepted} of {proposed} drafted tokens accepted"
    if answer.by_accepted and accepted != sum(n * rounds for n, rounds in enumerate(answer.by_accepted)):
        yield f"it reports {accepted} tokens accepted, its rounds by accepted tokens {answer.by_accepted}"
    # The last round may have verified more than the output had room for.
    room = answer.n_tokens - 1 + gamma if gamma else proposed
    rounds = -(-proposed // gamma) if gamma else 1
    if accepted + rounds > room + 1:
        yield f"it reports {accepted} tokens accepted in {rounds} or more rounds, of an output of {answer.n_tokens}"


def _counters(answer: ServerAnswer, grown: Counters) -> Iterator[str]:
    for name, verb in (("n_tokens", "predicted"), ("proposed", "proposed"), ("accepted", "accepted")):
        claimed = getattr(answer, name)
        if claimed is not None and name in grown and grown[name] != claimed:
            yield f"it reports {claimed} tokens {verb}, its own counters {grown[name]}"


def _times(answer: ServerAnswer, earlier: Iterable[ServerAnswer]) -> Iterator[str]:
    if answer.decode_ns is None:
        return
    # An answer cannot arrive in less time than its making took: it was made before, for somebody else.
    claimed = answer.decode_ns + (answer.prompt_ns or 0)
    if claimed > _TICK_NS and answer.total_ns < _CLOCKS * claimed:
        took = f"{answer.total_ns / 1e6:.1f} ms and reports {claimed / 1e6:.1f} ms"
        yield f"it came after {took}: a cached answer"
    # No two decodings take the same time to the microsecond, twice in a row, in both of their parts; of whole
    # milliseconds, as LM Studio counts, some do.
    times = answer.decode_ns, answer.prompt_ns
    if (
        answer.prompt_ns is not None
        and answer.decode_ns % NS_PER_MS
        and any((other.decode_ns, other.prompt_ns) == times for other in earlier)
    ):
        yield "its times equal those of an earlier answer to the digit: a cached answer; ask without a cache before it"


def decode_ns_of(answer: ServerAnswer, prefill: ServerAnswer) -> int | None:
    """The time from the first token to the last: by the server's clock where ours confirms it, else by ours.

    Ours is the whole answer less `prefill`, a whole answer of one token to the same prompt. When the pieces of an
    answer arrive says nothing: a server, or a proxy, may hold them back. None where too little time passed.
    """
    ours, claimed = whole_decode_ns(answer, prefill), answer.decode_ns
    if claimed is not None and abs(claimed - ours) <= _CONFIRMED * ours + _TICK_NS:
        return claimed
    return ours if ours > _TICK_NS else None


def whole_decode_ns(answer: ServerAnswer, prefill: ServerAnswer) -> int:
    """The whole answer less one of a single token, both by the clock of this program."""
    return max(0, answer.total_ns - prefill.total_ns)

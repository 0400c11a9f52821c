"""What a server reports of an answer, held against what can be: its clock, its counts, its memory of other requests."""

from collections.abc import Sequence

from mlsd.servers.endpoint import Request, ServerAnswer
from mlsd.servers.protocols import Counters

_CLOCKS = 0.9  # of the time that a server claims, at least so much must have passed here
_CONFIRMED = 0.05  # of the time that passed here, the server's may differ by so much
_TICK_NS = 2_000_000  # below it clocks and buffers decide


def doubt(
    request: Request,
    answer: ServerAnswer,
    gamma: int,
    grown: Counters | None = None,
    earlier: Sequence[ServerAnswer] = (),
) -> str | None:
    """Why this answer cannot be what the server says it is, or None.

    `gamma` is the most tokens it may draft a round, 0 where nobody knows; `grown` is what its own counters grew by
    around the answer, where nothing else was asked meanwhile; `earlier` are other answers to such requests.
    """
    return (
        _short(request, answer)
        or _prompt_changed(request, answer)
        or _counts(answer, gamma)
        or _counters(answer, grown)
        or _faster_than_made(answer)
        or _repeated_times(answer, earlier)
    )


def _short(request: Request, answer: ServerAnswer) -> str | None:
    wrote, asked = answer.n_tokens, request.n_predict
    if wrote > asked:
        return f"it wrote {wrote} tokens where {asked} were asked for"
    if wrote == asked or (answer.ended and not request.ignore_eog):
        return None
    if answer.ended:
        end = "this server cannot be told to go on: use --stop-at-eog"
        return f"the model ended it after {wrote} of {asked} tokens, and {end}"
    return f"it wrote {wrote} of {asked} tokens: the server limits them, or its context is full"


def _prompt_changed(request: Request, answer: ServerAnswer) -> str | None:
    if isinstance(request.prompt, str) or request.messages or answer.n_prompt is None:
        return None
    sent = len(request.prompt)
    if answer.n_prompt != sent:
        return f"it read {answer.n_prompt} prompt tokens where {sent} were sent: a template or a BOS token came on top"
    if not request.keep and answer.n_processed is not None and answer.n_processed < sent:
        return f"it remembered {sent - answer.n_processed} of {sent} prompt tokens that it was told to forget"
    return None


def _counts(answer: ServerAnswer, gamma: int) -> str | None:
    """Accepted tokens are proposed ones and part of the output; each round has one token that was not drafted."""
    proposed, accepted = answer.proposed, answer.accepted
    if not proposed or accepted is None:
        return None
    if accepted > proposed:
        return f"it reports {accepted} of {proposed} drafted tokens accepted"
    if answer.by_accepted and answer.accepted != sum(n * rounds for n, rounds in enumerate(answer.by_accepted)):
        return f"it reports {answer.accepted} tokens accepted, its rounds by accepted tokens {answer.by_accepted}"
    # The last round may have verified more than the output had room for.
    room = answer.n_tokens - 1 + gamma if gamma else proposed
    rounds = -(-proposed // gamma) if gamma else 1
    if accepted + rounds > room + 1:
        return f"it reports {accepted} tokens accepted in {rounds} or more rounds, of an output of {answer.n_tokens}"
    return None


def _counters(answer: ServerAnswer, grown: Counters | None) -> str | None:
    if grown is None:
        return None
    claims = (("predicted", answer.n_tokens), ("proposed", answer.proposed), ("accepted", answer.accepted))
    for name, claimed in claims:
        counted = getattr(grown, name)
        if claimed is not None and counted is not None and counted != claimed:
            return f"it reports {claimed} tokens {name}, its own counters {counted}"
    if grown.by_position and answer.accepted is not None and sum(grown.by_position) != answer.accepted:
        return f"it reports {answer.accepted} tokens accepted, its counters by position {sum(grown.by_position)}"
    return None


def _faster_than_made(answer: ServerAnswer) -> str | None:
    """An answer cannot arrive in less time than its making took: it was made before, for somebody else."""
    if answer.decode_ns is None:
        return None
    claimed = answer.decode_ns + (answer.prompt_ns or 0)
    if claimed > _TICK_NS and answer.total_ns < _CLOCKS * claimed:
        took = f"{answer.total_ns / 1e6:.1f} ms and reports {claimed / 1e6:.1f} ms"
        return f"it came after {took}: a cached answer"
    return None


def _repeated_times(answer: ServerAnswer, earlier: Sequence[ServerAnswer]) -> str | None:
    """No two decodings take the same time to the microsecond, twice in a row, in both of their parts."""
    if answer.decode_ns is None or answer.prompt_ns is None:
        return None
    if any((e.decode_ns, e.prompt_ns) == (answer.decode_ns, answer.prompt_ns) for e in earlier):
        return "its times equal those of an earlier answer to the digit: a cached answer"
    return None


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

"""What the rounds of trials sum to, and the rates that follow from counts and times: each formula stands here once."""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mlsd.records import Count, Record, Round, Trial
from mlsd.stats import Interval, mean_over
from mlsd.units import NS_PER_MS, tok_s

PARTS = ("draft_ns", "verify_ns", "rollback_ns", "sample_ns", "other_ns")  # exclusive parts of a round
DRAFTED, DRAFTED_RIGHT, DRAFT_ROUNDS = "draft_n", "draft_n_accepted", "draft_rounds"  # a server's own counts, in stats
BY_ACCEPTED = "rounds_accepting_"  # in stats, then a number: rounds of a server in which so many were accepted
PART_NAMES = tuple(part.removesuffix("_ns") for part in PARTS)

Endings = tuple[tuple[Count, Count, Count], ...]  # proposed, accepted, and how many rounds ended so; sorted


class Sums(Record, frozen=True, kw_only=True):
    """Counts and times summed over rounds."""

    rounds: Count = 0
    proposed: Count = 0
    accepted: Count = 0
    committed: Count = 0
    rows: Count = 0
    draft_ns: Count = 0
    verify_ns: Count = 0
    rollback_ns: Count = 0
    sample_ns: Count = 0
    other_ns: Count = 0
    endings: Endings = ()  # empty where single rounds are not known

    @property
    def acceptance_rate(self) -> float | None:
        return share(self.accepted, self.proposed)

    @property
    def acceptance_by_position(self) -> float | None:
        """The chance of a proposed token after the one before it: accepted over reached, at all positions together.

        A round reaches its accepted tokens and the one that it rejects: ``sum accepted / sum min(proposed, accepted +
        1)``.
        """
        return share(sum(a * n for _, a, n in self.endings), sum(min(k, a + 1) * n for k, a, n in self.endings))

    @property
    def mgl(self) -> float | None:
        return share(self.committed, self.rounds)

    @property
    def parts_ns(self) -> int:
        return sum(getattr(self, part) for part in PARTS)

    @property
    def ms_per_round(self) -> dict[str, float]:
        """Mean of each part of a round, by its name without the unit; empty without rounds."""
        if not self.rounds:
            return {}
        return {name: getattr(self, f"{name}_ns") / self.rounds / NS_PER_MS for name in PART_NAMES}


_OF_ROUND = Round.__struct_fields__
SUMMED = ("rounds", *_OF_ROUND)  # the fields of `Sums` that are numbers


def sums(rounds: Iterable[Round]) -> Sums:
    """The sums of some rounds, of one trial or of many."""
    rows = [msgspec.structs.astuple(each) for each in rounds]
    summed = map(sum, zip(*rows, strict=True)) if rows else [0] * len(_OF_ROUND)
    endings = endings_of((proposed, accepted) for proposed, accepted, *_ in rows)
    return Sums(rounds=len(rows), endings=endings, **dict(zip(_OF_ROUND, summed, strict=True)))


def endings_of(rounds: Iterable[tuple[int, int]]) -> Endings:
    """How often rounds, each by what it proposed and accepted, ended alike."""
    return _sorted(Counter(rounds))


def _sorted(counted: Mapping[tuple[int, int], int]) -> Endings:
    return tuple((proposed, accepted, n) for (proposed, accepted), n in sorted(counted.items()))


def total(each: Iterable[Sums]) -> Sums:
    """The sums of sums."""
    fields = [msgspec.structs.astuple(of_some) for of_some in each]
    if not fields:
        return Sums()
    *numbers, endings = zip(*fields, strict=True)
    counted = Counter[tuple[int, int]]()
    for (proposed, accepted, n), times in Counter(itertools.chain.from_iterable(endings)).items():
        counted[proposed, accepted] += n * times
    return Sums(endings=_sorted(counted), **dict(zip(SUMMED, map(sum, numbers), strict=True)))


def counts_of(trial: Trial) -> Sums | None:
    """The sums of a trial's rounds; of a server without rounds as it says, and None where it does not.

    Each round gives what it accepted and one token more; a server may count the rounds that drafted alone (vLLM), or
    accepted tokens behind the end of its answer (mlx-vlm): the larger number of rounds is right.
    """
    if trial.rounds or not {DRAFTED, DRAFTED_RIGHT} & trial.stats.keys():
        return sums(trial.rounds) if trial.rounds else None
    names = {"rounds": DRAFT_ROUNDS, "proposed": DRAFTED, "accepted": DRAFTED_RIGHT}
    counts: dict[str, Any] = {name: int(trial.stats.get(key, 0)) for name, key in names.items()}
    committed = max(0, trial.n_tokens - 1)
    return Sums(**{**counts, "committed": committed, "rounds": max(counts["rounds"], committed - counts["accepted"])})


def share(above: float | None, below: float | None) -> float | None:
    """A quotient of counts, None of nothing: acceptance is accepted / proposed, MGL committed / rounds."""
    return None if above is None or not below else above / below


def decode_tok_s(n_tokens: int, decode_ns: int | None) -> float | None:
    """Tokens after the first / time from the first to the last; None where no time or no such token was measured."""
    return None if decode_ns is None else tok_s(n_tokens - 1, decode_ns)


def speed(trial: Trial) -> float | None:
    """Decode tok/s of a trial."""
    return decode_tok_s(trial.n_tokens, trial.decode_ns)


def client_speed(trial: Trial) -> float | None:
    """Decode tok/s by the clock of this program, which is our own loop's as well: of whole answers, never of pieces."""
    span = trial.stats.get("whole_decode_ns", trial.decode_ns)
    return decode_tok_s(trial.n_tokens, None if span is None else int(span))


def prefill_tok_s(trial: Trial) -> float | None:
    """Prompt tokens a second of a trial, up to its first output token."""
    return tok_s(trial.n_prompt or 0, trial.prefill_ns or 0)


def first_token_ms(trial: Trial) -> float | None:
    """From the prompt to the first token: prefill of target and draft; of a server from sending the request.

    None where the trial went on from a saved prompt.
    """
    span = trial.stats.get("first_token_ns")
    if span is None and trial.prefill_ns is not None:
        span = trial.prefill_ns + (trial.draft_prefill_ns or 0)
    return span / NS_PER_MS if span else None


def break_even_tokens(later_s: float, plain_tok_s: float, speedup: float) -> float | None:
    """Output tokens that make up for a first token that comes later; None where decoding is no faster.

    ``n = 1 + later plain_tok_s / (1 - 1 / speedup)``, at least 1.
    """
    return max(1.0, 1.0 + later_s * plain_tok_s / (1.0 - 1.0 / speedup)) if speedup > 1 else None


def pays_from(
    later_ms: Sequence[float], groups: Sequence[Hashable], plain_tok_s: float, speedup: Interval
) -> Interval | None:
    """Output tokens from which a whole request is faster, though its first token comes `later_ms` later in each block.

    Its ends take those of the speedup with those of the 95 % interval of the delay over `groups` (Student 1908), so
    that they hold in at least 90 %. None where decoding is no faster.
    """
    if not later_ms:
        return None
    later = mean_over(later_ms, groups)

    def tokens(ms: float | None, ratio: float | None) -> float | None:
        return None if ms is None or ratio is None else break_even_tokens(ms / 1e3, plain_tok_s, ratio)

    value = tokens(later.value, speedup.value)
    low, high = tokens(later.low, speedup.high), tokens(later.high, speedup.low)
    if value is None:
        return None
    return Interval(value=value, n=later.n) if high is None else Interval(value=value, low=low, high=high, n=later.n)

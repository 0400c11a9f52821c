"""What a whole request takes: the time to its first token, and from which length of output on a setting pays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mlsd.records import Trial
from mlsd.stats import Interval, mean_over
from mlsd.units import NS_PER_MS


def first_token_ms(trial: Trial) -> float | None:
    """From the prompt to the first token: prefill of target and draft; of a server from sending the request.

    None where the prompt was read once for all arms.
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

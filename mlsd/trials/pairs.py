"""Which trials of an arm count, what pairs with what, and the speedup over pairs: one rule for every reader."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from mlsd.records import Trial
from mlsd.stats import Interval, independent, paired, paired_ratio
from mlsd.trials.fates import Fate, fate_of
from mlsd.trials.sums import speed

NO_NUMBER = (Fate.FAILED, Fate.DISTURBED)  # of these nothing is shown


class Timed(NamedTuple):
    """The speed of one trial, and what it shares noise with."""

    tok_s: float
    prompt: Hashable
    block: Hashable


def counted(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that an arm is shown by: the valid ones.

    Of an arm without any those that finished undisturbed, and the arm is shown as invalid: what a program that checks
    nothing would have printed.
    """
    own = list(trials)
    return [t for t in own if t.valid] or [t for t in own if fate_of(t) not in NO_NUMBER]


def pair_up(
    plain: Iterable[Trial],
    others: Iterable[Trial],
    prompt: Callable[[Trial], Hashable] = lambda trial: None,
    tok_s: Callable[[Trial], float | None] = speed,
) -> list[tuple[Timed, Timed]]:
    """Timed trials that count, each beside the plain one of its prompt, block and repeat."""

    def timed(trials: Iterable[Trial]) -> list[Timed]:
        known = ((trial, tok_s(trial)) for trial in counted(trials))
        return [Timed(own, prompt(t), (t.block, t.repeat)) for t, own in known if own is not None]

    return paired(timed(plain), timed(others), lambda one: one[1:])


def speedup(pairs: Sequence[tuple[Timed, Timed]]) -> Interval | None:
    """Geometric mean of decode tok/s over that of the plain trial, with its interval over what shares no noise.

    Over prompts where there are several, else over blocks (`stats.independent`). None without a pair.
    """
    if not pairs:
        return None
    groups = independent([other.prompt for _, other in pairs], [other.block for _, other in pairs])
    return paired_ratio([other.tok_s for _, other in pairs], [plain.tok_s for plain, _ in pairs], groups)

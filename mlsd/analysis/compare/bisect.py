"""Which build of a list changed a measure, with as few turns as the noise allows: a search that weighs every doubt.

The first changed build k is unknown, and so are the change and the noise. A difference of build j from the oldest in
one block is ``0 + noise`` for j < k and ``change + noise`` for j >= k. With a flat prior over k and the change, and
Jeffreys' over the noise, N differences give

    P(k) ~ n_k^(-1/2) RSS_k^(-(N - 1) / 2)

n_k the differences of builds from k on, RSS_k the squares of the others and of these about their own mean (the normal
model's marginal likelihood; Box and Tiao 1973, 2.4). What is tried next is the build that is changed with a chance
nearest to one half, as bisection does without noise (Horstein 1963; Waeber, Frazier and Henderson 2013).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from mlsd.analysis.compare.gate import LEAST_BLOCKS, Finding
from mlsd.analysis.compare.sessions import Session
from mlsd.errors import AnalysisError
from mlsd.measure.run.compare import CONTROL
from mlsd.records import Record

SURE = 0.99
# Of the values themselves: below it two differences are one, so that measures without noise do not divide by it.
_EXACT = 1e-9


def first_changed(observed: Sequence[tuple[int, float]], n_builds: int) -> tuple[float, ...]:
    """The chance of each build, from 1 on, to be the first that changed.

    `observed`: (place, difference from the oldest); place 0 is the oldest once more. Raises: AnalysisError before the
    newest was observed twice, for nothing says how large the change is then.
    """
    newest = [value for place, value in observed if place == n_builds - 1]
    if len(newest) < 2:
        raise AnalysisError("The newest build was not measured twice.", hint="Let the search run on.")
    logs = []
    for k in range(1, n_builds):
        before = [value for place, value in observed if place < k]
        after = [value for place, value in observed if place >= k]
        middle = math.fsum(after) / len(after)
        squares = math.fsum(v * v for v in before) + math.fsum((v - middle) ** 2 for v in after)
        squares += len(observed) * _EXACT**2
        logs.append(-0.5 * math.log(len(after)) - 0.5 * (len(observed) - 1) * math.log(squares))
    most = max(logs)
    weights = [math.exp(value - most) for value in logs]
    return tuple(weight / sum(weights) for weight in weights)


def next_build(observed: Sequence[tuple[int, float]], n_builds: int) -> int | None:
    """The build to try next, None when one is sure to be the first that changed.

    No build is tried more often than the newest, by whose change all are judged. Raises: as `first_changed` does.
    """
    chances = first_changed(observed, n_builds)
    if max(chances) >= SURE:
        return None
    changed, nearest = 0.0, (1.0, 1)
    for place, chance in enumerate(chances[:-1], start=1):
        changed += chance
        nearest = min(nearest, (abs(changed - 0.5), place))
    tried = Counter(place for place, _ in observed)
    return nearest[1] if tried[nearest[1]] < tried[n_builds - 1] else n_builds - 1


class Search(Record, frozen=True, kw_only=True):
    """Where a search over builds stands."""

    measure: str | None  # None: between oldest and newest nothing is decided yet
    chances: tuple[float, ...] = ()  # of each build, from place 1 on, to be the first that changed
    next_place: int | None = None  # the build to try next
    turns: tuple[int, ...]  # worker processes that each build ran in, the control among those of place 0
    least_turns: int  # without any noise

    @property
    def found(self) -> int | None:
        """The place of the first changed build, once it is sure."""
        return 1 + self.chances.index(max(self.chances)) if self.chances and max(self.chances) >= SURE else None

    def next_roles(self) -> tuple[str, ...] | None:
        """The sides of the next block, None when the build is found."""
        if self.measure is None:
            return ("0", CONTROL, str(len(self.turns) - 1))
        return None if self.next_place is None else ("0", str(self.next_place))


def search(session: Session, measure: str | None = None) -> Search:
    """What a session's blocks say so far of a measure, or of the one that changed most clearly from end to end.

    Raises: AnalysisError for a measure that the session does not have.
    """
    n_builds = sum(role != CONTROL for role in session.sides)
    turns = [len(session.blocks[str(place)]) for place in range(n_builds)]
    turns[0] += len(session.blocks.get(CONTROL, ()))
    search = Search(measure=None, turns=tuple(turns), least_turns=least_turns(n_builds))
    ends = session.comparison(role=str(n_builds - 1))
    known = [f.measure.name for f in ends.findings]
    if known and measure not in (None, *known):
        raise AnalysisError(f"{measure!r} was not measured.", hint=f"Choose from {', '.join(known)}.")
    changed = [f for f in ends.findings if f.verdict not in ("same", "undecided")]
    if measure is None:
        changed = [f for f in changed if f.measure.counts] or changed
    else:
        changed = [f for f in changed if f.measure.name == measure]
    if not changed or ends.n_blocks < LEAST_BLOCKS:
        return search
    chosen = max(changed, key=_clearness).measure.name
    observed = session.observations(chosen)
    return msgspec.structs.replace(
        search, measure=chosen, chances=first_changed(observed, n_builds), next_place=next_build(observed, n_builds)
    )


def _clearness(found: Finding) -> float:
    """How many half-widths of its interval a change is away from none."""
    change = found.change
    assert change is not None and change.low is not None and change.high is not None
    if found.measure.is_ratio:
        return abs(math.log(change.value)) / max(math.log(change.high / change.low), _EXACT)
    return abs(change.value) / max(change.high - change.low, _EXACT)


def least_turns(n_builds: int) -> int:
    """The turns of builds that a search would need without any noise: both ends once, and halving."""
    return 2 + math.ceil(math.log2(n_builds - 1))

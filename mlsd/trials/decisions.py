"""When enough was measured: which arms are decided, which cannot win any more, and whether a session is done.

Every session may be looked at after every block and stopped at any of them, so an interval of this file holds at all
looks at once, and for all arms of a session together. It is Student's interval at a level that is spent over the looks

    a(n) = alpha / (SPENT m (1 + log2(n / first))^2)

for m arms and n units (blocks of one prompt, else prompts; `stats.independent`), first the units of the first look.
Looks within a doubling of n say nearly the same, so that the levels of the doublings sum, as 1 + 1/4 + 1/9 + ... do
("stitching": Howard, Ramdas, McAuliffe and Sekhon 2021; t quantiles at the levels of looks: Jennison and Turnbull 2000,
11.5). SPENT was chosen by simulation (`benchmarks/decisions.py`): at 3 a measure that is looked at after each of 3 to
100 blocks is falsely decided in 3.8 % of sessions, one of twenty arms in 0.8 %. Tried beside it: a mixture martingale
for the t statistic (Lai 1976; Wang and Ramdas 2024), twice as wide at 3 blocks and alike from 15 on; t quantiles at
levels that fall as 1 / (k (k + 1)), a quarter wider from 8 blocks on; and Pocock's constant level, narrower from 8 on,
which needs the number of looks beforehand.

Arms of one session are measured under the same noise, and three blocks say little of an arm's own. So its variance is
the larger of its own and of the mean of own and all arms', weighted by freedom (Smyth 2004, "moderated t", with the
arms for the genes). m arms beside one plain arm of like noise share a quarter of their squared scatter: the variance of
a mean of their m variances is ``(1 + (m - 1) / 4) / m`` of one's, which counts the freedom. The larger of both keeps
the promise where arms scatter unlike (standard deviations a factor of e^0.5 apart; e^1: 4.5 %). Prompts that are
answered each for itself in one session scatter alike as well, and share no plain trial: the freedom of the others adds
up to as much as a prompt's own (3.0 % where their standard deviations lie a factor of e^0.5 apart; all of it: 9 %).

Two processes of one program lie elsewhere in memory: a steady difference of 0.7 to 1.2 % (standard deviation of the
ratio). Where an arm has a new process for each block that is noise like any other. Where it is one process throughout
(`apart`) blocks do not show it, so intervals go further on both sides by what it does in 95 % of sessions of m arms:
false decisions then 0 to 4.8 % (1 and 4 arms, noise of 0.2 to 3 %), with a process for each block 0.7 to 3.3 %.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from mlsd.records import Record
from mlsd.stats import Interval, t_quantile
from mlsd.trials.fates import Fate

Effect = Literal["faster", "slower", "no difference", "undecided"]
Logs = Mapping[tuple[str, int], float]  # (prompt, block) -> ln of tok/s
G = TypeVar("G", bound=Hashable)

ALPHA = 0.05  # chance that anything a session decides is wrong
NO_DIFFERENCE = 0.03  # a change that nobody would switch a setting on for
SPENT = 3.0
PROCESSES = 0.012  # standard deviation of ln of the ratio of two processes of one program
_SHARED = 0.25  # of the squared scatter of two arms' ratios comes from the plain trials that both divide by
_LEAST_FREEDOM = 2.0
_MOST_UNITS = 1_000  # that are worth promising
_NAMED = 2  # undecided settings that a sentence takes


class Estimate(Record, frozen=True, kw_only=True):
    """The mean of an arm's units, and what they scatter."""

    centre: float
    variance: float  # of a unit
    n: int  # units that share no noise
    looks: int  # how often it may have been looked at: blocks


class Noise(NamedTuple):
    """What arms scatter by, and how well that is known."""

    freedom: float = 0.0
    variance: float = 0.0

    def __add__(self, other: tuple[object, ...]) -> Noise:
        """Both, of other blocks each."""
        assert isinstance(other, Noise)
        freedom = self.freedom + other.freedom
        total = self.freedom * self.variance + other.freedom * other.variance
        return Noise(freedom, total / freedom if freedom else 0.0)


class Standing(Record, frozen=True, kw_only=True):
    """Where an arm stands beside plain decoding."""

    name: str
    ratio: Interval  # speedup; all intervals of a session hold together, at every look, in 95 %
    effect: Effect
    out: str | None = None  # why it cannot win any more
    more_blocks: int | None = None  # of an undecided one: about so many more would be needed
    control: bool = False  # a bound that nobody can use: it neither wins nor drops out

    @property
    def words(self) -> str:
        """The decision as a reader wants it."""
        if self.control:
            return "a control, cannot be used"
        if self.effect == "no difference":
            return f"no difference above {_percent(NO_DIFFERENCE)}"
        if self.effect != "undecided":
            return self.effect
        if self.more_blocks is None:
            return "undecided"
        return f"undecided: {self.more_blocks} more block{'s' if self.more_blocks > 1 else ''} would be needed"


class Decision(Record, frozen=True, kw_only=True):
    """What the blocks of a session say so far."""

    standings: tuple[Standing, ...]  # in the order in which arms were given
    leader: str | None  # the fastest that is not out
    behind: float  # so much faster than the leader another one in the race may still be, a share; inf: unknown

    @property
    def racing(self) -> tuple[str, ...]:
        """The arms that may still win, and controls."""
        return tuple(one.name for one in self.standings if one.out is None)

    def of(self, name: str) -> Standing | None:
        """Where the arm of that name stands."""
        return next((one for one in self.standings if one.name == name), None)

    @property
    def best(self) -> Standing | None:
        """The fastest that is decided to be faster than plain decoding; None: leave it off."""
        faster = [one for one in self.standings if one.effect == "faster" and not one.control]
        return max(faster, key=lambda one: one.ratio.value, default=None)

    @property
    def words(self) -> str:
        """What to use, and what is open."""
        best = self.best
        said = "leave it off, nothing is decided to be faster" if best is None else f"use {best.name}, {_times(best)}"
        left = [one for one in self.standings if one.out is None and not one.control]
        alike = [one.name for one in left if one not in (best,) and one.effect == "faster"]
        parts = [said, f"not told apart from it: {', '.join(alike)}" if alike else ""]
        undecided = [one for one in left if one.effect == "undecided"]
        if len(undecided) > _NAMED:  # a table beside it has them all
            parts.append(f"{len(undecided)} settings are undecided")
        else:
            parts += [f"{one.name} is {one.words}" for one in undecided]
        return "; ".join(part for part in parts if part)

    def done(self, within: float | None = None, among: Container[str] | None = None) -> bool:
        """Whether each arm (`among` these) is decided or out; with `within` also the best known to this share.

        Controls are asked only where they are alone.
        """
        asked = [one for one in self.standings if among is None or one.name in among]
        asked = [one for one in asked if not one.control] or asked
        if any(one.effect == "undecided" and one.out is None for one in asked):
            return False
        if within is None or self.leader is None:
            return True
        standing = self.of(self.leader)
        assert standing is not None
        led = standing.ratio
        known = led.low is not None and led.high is not None and max(led.high / led.value, led.value / led.low)
        return bool(known) and known <= 1 + within and self.behind <= within


def decide(
    plain: Logs,
    arms: Mapping[str, Logs],
    *,
    anchor: str | None = None,
    controls: Container[str] = (),
    n_choices: int | None = None,
    apart: bool = False,
    elsewhere: Noise = Noise(),  # noqa: B008 - a tuple
) -> Decision:
    """What is decided of the arms beside plain decoding in the same blocks, and which of them cannot win any more.

    Out is what is slower than plain decoding, or slower than the leader in the blocks that both were in; never the
    `anchor`, which shows what heat does to passes wider than those of plain decoding. `controls` stay in every block,
    and nothing is out for being slower than one. `n_choices`: arms of the session where these are a part. `apart`: each
    arm is one process throughout. `elsewhere`: the noise of the session's other parts.
    """
    m = n_choices or len(arms)
    beside = against(plain, arms, m, apart=apart, elsewhere=elsewhere)
    running = [name for name, ratio in beside.items() if name not in controls and effect_of(ratio) != "slower"]
    leader = max(running, key=lambda name: (beside[name].value, name), default=None)
    # Only the upper end is read of how far behind an arm is, so all of the chance to be wrong is that end's.
    others = {name: own for name, own in arms.items() if name != leader}
    behind = (
        {} if leader is None else against(arms[leader], others, m, apart=apart, elsewhere=elsewhere, alpha=2 * ALPHA)
    )
    standings = []
    for name, ratio in beside.items():
        effect, out = effect_of(ratio), None
        if name != anchor and name not in controls:
            if effect == "slower":
                out = "slower than plain decoding"
            elif (most := behind[name].high if name in behind else None) is not None and most < 1 + NO_DIFFERENCE:
                out = f"{'slower' if most < 1 else 'no faster'} than {leader}"
        more = _more_blocks(ratio) if effect == "undecided" and not _several(plain) else None
        control = name in controls
        standings.append(Standing(name=name, ratio=ratio, effect=effect, out=out, more_blocks=more, control=control))
    racing = [one.name for one in standings if one.out is None and one.name in running and one.name != leader]
    most = max((behind[name].high or math.inf for name in racing if name in behind), default=1.0)
    return Decision(standings=tuple(standings), leader=leader, behind=max(0.0, most - 1))


class Timing(NamedTuple, Generic[G]):
    """A trial as a decision sees it."""

    group: G  # answered for itself
    arm: str | None  # its name; None: plain decoding
    place: tuple[str, int]  # prompt and block
    tok_s: float | None
    fate: Fate
    control: bool = False
    session: int = 0  # in which it was measured

    @property
    def spoils(self) -> bool:
        """Whether its arm counts no more: it failed, is not valid or not timed; a disturbed one does not."""
        return not self.tok_s if self.fate is Fate.VALID else self.fate is not Fate.DISTURBED


def standings(
    trials: Iterable[Timing[G]],
    *,
    n_choices: int | None = None,
    anchors: Mapping[G, str] | None = None,
    apart: bool = False,
) -> dict[G, Decision]:
    """What trials decide of each group; only what is valid counts, of what was measured twice the latest.

    An arm of which one trial is not valid is left out: whatever its speed is, nobody may use it. `n_choices`: arms of
    the session; None: of all groups together.
    """
    plain: dict[G, dict[tuple[str, int], float]] = {}
    groups: dict[G, dict[str, dict[tuple[str, int], float]]] = {}
    spoilt, controls, sessions = set[tuple[G, str]](), set[str](), defaultdict[G, set[int]](set)
    for one in trials:
        sessions[one.group].add(one.session)
        if one.arm is None:
            logs = plain.setdefault(one.group, {})
        else:
            logs = groups.setdefault(one.group, {}).setdefault(one.arm, {})
            if one.control:
                controls.add(one.arm)
            if one.spoils:
                spoilt.add((one.group, one.arm))
        if one.fate is Fate.VALID and one.tok_s:
            logs[one.place] = math.log(one.tok_s)
    m = n_choices or sum(map(len, groups.values()))
    sound = {
        group: {name: logs for name, logs in arms.items() if (group, name) not in spoilt}
        for group, arms in groups.items()
        if plain.get(group)
    }
    noise = {
        group: Noise() if _several(plain[group]) else _noise(_estimates(plain[group], arms).values())
        for group, arms in sound.items()
    }
    return {
        group: decide(
            plain[group],
            arms,
            anchor=(anchors or {}).get(group),
            controls=controls,
            n_choices=m,
            apart=apart,
            elsewhere=sum(
                (own for other, own in noise.items() if other != group and sessions[other] == sessions[group]), Noise()
            ),
        )
        for group, arms in sound.items()
    }


def against(
    base: Logs,
    arms: Mapping[str, Logs],
    n_choices: int | None = None,
    *,
    apart: bool = False,
    elsewhere: Noise = Noise(),  # noqa: B008 - a tuple
    alpha: float = ALPHA,
) -> dict[str, Interval]:
    """Each arm's speed over that of `base`, in the blocks that both were in; those that share none are left out."""
    found = _estimates(base, arms)
    shared = 1.0 if _several(base) else _SHARED
    ratios = sequential(list(found.values()), n_choices or len(arms), alpha=alpha, shared=shared, elsewhere=elsewhere)
    if apart:
        ratios = [processes_apart(ratio, n_choices or len(arms)) for ratio in ratios]
    return dict(zip(found, ratios, strict=True))


def processes_apart(ratio: Interval, n_choices: int = 1) -> Interval:
    """A ratio's interval, wider by what two processes of one program differ by: see the module."""
    if ratio.low is None or ratio.high is None:
        return ratio
    by = math.exp(PROCESSES * statistics.NormalDist().inv_cdf(1 - ALPHA / (2 * n_choices)))
    return Interval(value=ratio.value, low=ratio.low / by, high=ratio.high * by, n=ratio.n)


def sequential(
    estimates: Sequence[Estimate],
    n_choices: int,
    *,
    alpha: float = ALPHA,
    shared: float = _SHARED,
    ratio: bool = True,
    elsewhere: Noise = Noise(),  # noqa: B008 - a tuple
) -> list[Interval]:
    """Intervals around the estimates that hold together and at every look with a chance of 1 - `alpha`.

    `shared`: of the squared scatter of two of them has one source; 1 lets each stand for itself, as prompts do, whose
    effects are alike in all arms. `elsewhere` counts for as much as these at most. Without ends where too few units
    were measured to know any scatter.
    """
    noise = _noise(estimates, shared)
    noise += Noise(min(elsewhere.freedom, noise.freedom), elsewhere.variance)
    found = []
    for one in estimates:
        own = one.n - 1
        free, variance = max(noise.freedom, own) if shared < 1 else float(own), one.variance
        if 0 < own < free:
            variance = max(variance, (own * variance + (free - own) * noise.variance) / free)
        half = None
        if own and free >= _LEAST_FREEDOM - 1e-9:
            half = _quantile(alpha / n_choices, one, free) * math.sqrt(variance / one.n)
        found.append(_interval(one, half, ratio))
    return found


def tail(alpha: float, n_choices: int, looks: int, first: int) -> float:
    """What each end of an interval may miss at this look: ``a(n) / 2`` of the module's formula."""
    return alpha / n_choices / SPENT / (1 + math.log2(max(looks, first) / first)) ** 2 / 2


# --- inside -------------------------------------------------------------------------------------------------------


def _several(base: Logs) -> bool:
    return len({prompt for prompt, _ in base}) > 1


def _noise(estimates: Iterable[Estimate], shared: float = _SHARED) -> Noise:
    """The mean variance of the estimates; its freedom counts what they share: see the module."""
    known = [one for one in estimates if one.n > 1]
    total = sum(one.n - 1 for one in known)
    if not total:
        return Noise()
    variance = sum((one.n - 1) * one.variance for one in known) / total
    return Noise(total / (1 + shared * (len(known) - 1)), variance)


def _estimates(base: Logs, arms: Mapping[str, Logs]) -> dict[str, Estimate]:
    return {name: estimate for name, own in arms.items() if (estimate := _estimate(base, own)) is not None}


def _estimate(base: Logs, own: Logs) -> Estimate | None:
    units: dict[object, list[float]] = {}
    several = _several(base)
    for place, log in own.items():
        if place in base:
            units.setdefault(place[0] if several else place, []).append(log - base[place])
    if not units:
        return None
    means = [statistics.fmean(unit) for unit in units.values()]
    return Estimate(
        centre=statistics.fmean(means),
        variance=statistics.variance(means) if len(means) > 1 else 0.0,
        n=len(means),
        looks=max(map(len, units.values())) if several else len(means),
    )


def _quantile(alpha: float, one: Estimate, freedom: float) -> float:
    first = 1
    if one.looks == one.n:  # blocks are the units: the first look is where any scatter is known
        first = next(n for n in (2, 3) if n == 3 or freedom / (one.n - 1) * (n - 1) >= _LEAST_FREEDOM)
    return t_quantile(1 - tail(alpha, 1, one.looks, first), freedom)


def _interval(one: Estimate, half: float | None, ratio: bool) -> Interval:
    back = _exp if ratio else float
    if half is None:
        return Interval(value=back(one.centre), n=one.n)
    return Interval(value=back(one.centre), low=back(one.centre - half), high=back(one.centre + half), n=one.n)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def effect_of(ratio: Interval | None) -> Effect:
    """What an interval decides: beyond 1 on one side, else within `NO_DIFFERENCE` of it (Schuirmann 1987)."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "undecided"
    if ratio.low > 1:
        return "faster"
    if ratio.high < 1:
        return "slower"
    near = 1 + NO_DIFFERENCE
    return "no difference" if ratio.low > 1 / near and ratio.high < near else "undecided"


def _times(one: Standing) -> str:
    bounds = "" if one.ratio.low is None else f" (95 % {one.ratio.low:.2f} to {one.ratio.high:.2f})"
    return f"{one.ratio.value:.2f}x{bounds}"


def _more_blocks(ratio: Interval) -> int | None:
    """Blocks until an effect of the size measured so far is decided: ends come nearer as 1 / sqrt(n)."""
    if ratio.low is None or ratio.high is None or ratio.high == ratio.value:
        return None
    size, half = abs(math.log(ratio.value)), math.log(ratio.high / ratio.value)
    needed = math.ceil(ratio.n * (half / max(size, math.log1p(NO_DIFFERENCE) - size)) ** 2)
    return max(1, needed - ratio.n) if needed <= _MOST_UNITS else None


def _percent(share: float) -> str:
    return f"{100 * share:g} %"

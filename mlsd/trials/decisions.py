"""What a session decides: which arms are decided, which cannot win any more, and whether it is done."""

import bisect
import math
from collections.abc import Container, Mapping
from typing import Literal, NamedTuple

import msgspec

from mlsd.records import Record
from mlsd.stats import Interval
from mlsd.trials.intervals import (
    ALPHA,
    Design,
    Estimate,
    Logs,
    Stopping,
    against,
    estimates_over,
    half_width,
    has_several_prompts,
    interval_of,
)
from mlsd.units import NS_PER_MS, counted

Effect = Literal["faster", "slower", "no difference", "not decided yet"]


NO_DIFFERENCE = 0.03  # a change that nobody would switch a setting on for
SAME_PROGRAM = 0.02  # two processes of one program differ by so much
NOTHING_PROPOSED = "nothing was proposed"
LEAST_BLOCKS = 3  # fewer decide nothing: two that were disturbed alike agree too well
SHORT_DECODE_NS = 100 * NS_PER_MS  # below this one scheduling slice of another process is a visible part
WAITED_SHARE = 0.25  # of a generation in which no thread of the worker ran
_MOST_UNITS = 1_000  # that are worth promising


class Most(NamedTuple):
    """What an arm's counts allow: each of its rounds costs at least a pass of plain decoding."""

    mgl: float  # so many times as fast
    proposed: bool = True  # else it is plain decoding


class Standing(Record, frozen=True, kw_only=True):
    """What is decided of an arm."""

    name: str
    ratio: Interval  # speedup; all intervals of a session hold together in 95 %
    effect: Effect
    out: str | None = None  # why it cannot win any more
    more_blocks: int | None = None  # of one not decided yet: about so many more would be needed
    n_blocks: int = 0  # in which it was measured, with plain decoding beside it
    doubt: str = ""  # why nothing is decided of it, whatever its interval says
    control: bool = False  # a bound, no method that can be used: it neither wins nor drops out

    @property
    def sentence(self) -> str:
        """The decision as a reader wants it."""
        if self.control:
            return "a control, cannot be used"
        if self.effect == "no difference":
            return f"no difference above {100 * NO_DIFFERENCE:g} %"
        if self.effect != "not decided yet":
            return self.effect
        more = "" if self.more_blocks is None else f"{counted(self.more_blocks, 'more block')} needed"
        return ": ".join(filter(None, ("not decided yet", self.doubt or more)))

    @property
    def finding(self) -> str:
        """The speedup and what is decided of it, as every sentence says it.

        ``is faster: 1.44x (95 % 1.20 to 1.70)``; ``looks like a win: 1.44x after 1 block, not decided yet``.
        """
        if self.effect != "not decided yet":
            return f"{_EFFECTS[self.effect]}: {times(self.ratio)}"
        return f"{self.looks}, not decided yet{f': {self.doubt}' if self.doubt else ''}"

    @property
    def looks(self) -> str:
        """What its blocks say so far, where they decide nothing: ``looks like a win: 1.44x after 1 block``."""
        value, near = self.ratio.value, 1 + NO_DIFFERENCE
        kind = "a win" if value > near else "a loss" if value < 1 / near else "no difference"
        ends = f"{value:.2f}x" if self.ratio.low is None else times(self.ratio)
        return f"looks like {kind}: {ends} after {counted(self.n_blocks or self.ratio.n, 'block')}"


class Decision(Record, frozen=True, kw_only=True):
    """What the blocks of a session say so far."""

    standings: tuple[Standing, ...]  # in the order in which arms were given
    leader: str | None  # the fastest that is not out
    behind: float  # so much faster than the leader another one in the race may still be, a share; inf: unknown
    impossible: tuple[str, ...] = ()  # faster than their most, so that a clock is wrong: they decide nothing

    @property
    def racing(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.standings if one.out is None)

    def of(self, name: str) -> Standing | None:
        return next((one for one in self.standings if one.name == name), None)

    def done(self, within: float | None = None, among: Container[str] | None = None) -> bool:
        """Whether each arm (`among` these) is decided or out; with `within` also the best known to this share.

        Controls only where they are alone.
        """
        open_ = [one for one in self.standings if among is None or one.name in among]
        open_ = [one for one in open_ if not one.control] or open_
        if any(one.effect == "not decided yet" and one.out is None for one in open_):
            return False
        if within is None or self.leader is None:
            return True
        standing = self.of(self.leader)
        assert standing is not None
        led = standing.ratio
        precision = led.low is not None and led.high is not None and max(led.high / led.value, led.value / led.low)
        return bool(precision) and precision <= 1 + within and self.behind <= within


def decide(
    plain: Logs,
    arms: Mapping[str, Logs],
    design: Design,
    *,
    controls: Container[str] = (),
    anchor: str | None = None,
    limits: Mapping[str, Most] | None = None,
    doubts: Mapping[str, str] | None = None,
) -> Decision:
    """What is decided of the arms beside plain decoding in the same blocks, and which of them cannot win any more.

    No speedup is above what an arm's counts allow (`limits`): one whose interval lies beyond it is `impossible` and
    left out, and of one whose value does nothing is decided. Nor is anything of arms in fewer than `LEAST_BLOCKS`
    blocks, or whose times are in doubt (`doubts`, with the reason). Out is what proposed nothing, or is slower than
    plain decoding, or than the leader in the blocks that both were in; never the `anchor`, which shows what heat does
    to passes wider than those of plain decoding. `controls` stay in every block, and nothing is out for being slower
    than one.
    """
    estimates, limits = estimates_over(plain, arms), limits or {}
    ratios = {name: interval_of(one, design, ALPHA) for name, one in estimates.items()}
    lows = {name: ratio.low for name, ratio in ratios.items() if ratio.low is not None}
    beyond = {name: (1 + SAME_PROGRAM) * own.mgl for name, own in limits.items() if own.proposed}
    if impossible := [name for name, most in beyond.items() if lows.get(name, 0.0) > most]:
        rest = {name: logs for name, logs in arms.items() if name not in impossible}
        of_rest = decide(plain, rest, design, controls=controls, anchor=anchor, limits=limits, doubts=doubts)
        return msgspec.structs.replace(of_rest, impossible=tuple(impossible))
    idle = {name for name, own in limits.items() if not own.proposed}
    n_blocks = {name: sum(place in plain for place in arms[name]) for name in ratios}
    few = f"nothing is decided from fewer than {LEAST_BLOCKS} blocks"
    doubts = {
        **{name: few for name, n in n_blocks.items() if n < LEAST_BLOCKS},
        **{name: _above(limits[name]) for name, most in beyond.items() if name in ratios and ratios[name].value > most},
        **(doubts or {}),
        **dict.fromkeys(idle, NOTHING_PROPOSED),
    }
    effects: dict[str, Effect] = {
        name: "not decided yet" if name in doubts else effect_of(ratio) for name, ratio in ratios.items()
    }
    able = [name for name in ratios if name not in controls and name not in idle]
    running = [name for name in able if effects[name] != "slower"]
    leader = max(running, key=lambda name: (ratios[name].value, name), default=None)
    # Only the upper end is read of how far behind an arm is, so all of the chance to be wrong is that end's.
    others = {name: own for name, own in arms.items() if name != leader}
    behind = {} if leader is None or leader in doubts else against(arms[leader], others, design, alpha=2 * ALPHA)
    standings = []
    for name, ratio in ratios.items():
        effect, out, more, doubt = effects[name], None, None, doubts.get(name, "")
        if name != anchor and name not in controls:
            if effect == "slower":
                out = "slower"
            elif name in idle:
                out = NOTHING_PROPOSED
            elif not doubt and name in behind and (behind[name].high or math.inf) < 1 + NO_DIFFERENCE:
                out = f"{'slower' if (behind[name].high or math.inf) < 1 else 'no faster'} than {leader}"
        if effect == "not decided yet" and doubt in ("", few) and not has_several_prompts(plain):
            more = _more_blocks(estimates[name], design)
        standings.append(
            Standing(
                name=name, ratio=ratio, effect=effect, out=out, more_blocks=more, n_blocks=n_blocks[name],
                doubt="" if out else doubt, control=name in controls,
            )
        )  # fmt: skip
    racing = [one.name for one in standings if one.out is None and one.name in running and one.name != leader]
    most = max((behind[name].high or math.inf for name in racing if name in behind), default=1.0)
    return Decision(standings=tuple(standings), leader=leader, behind=max(0.0, most - 1))


def effect_of(ratio: Interval | None) -> Effect:
    """What an interval decides: beyond 1 on one side, else within `NO_DIFFERENCE` of it (Schuirmann 1987)."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "not decided yet"
    if ratio.low > 1:
        return "faster"
    if ratio.high < 1:
        return "slower"
    near = 1 + NO_DIFFERENCE
    return "no difference" if ratio.low > 1 / near and ratio.high < near else "not decided yet"


def times(ratio: Interval) -> str:
    """A speedup in words: ``1.21x (95 % 1.15 to 1.27)``."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x (no interval from {counted(ratio.n, 'block')})"
    return ratio.text(ratio.digits(), "x", "(95 % {} to {})")


_EFFECTS: Mapping[Effect, str] = {
    "faster": "is faster", "slower": "is slower", "no difference": "makes no difference",
}  # fmt: skip


# --- inside -------------------------------------------------------------------------------------------------------


def _above(most: Most) -> str:
    return f"it was timed above what its MGL of {most.mgl:.2f} allows"


def _more_blocks(of_arm: Estimate, design: Design) -> int | None:
    """Blocks until an effect of the size and scatter measured so far is decided; they are looked at as they come."""
    sequential = msgspec.structs.replace(design, stopping=Stopping.SEQUENTIAL)
    size = max(abs(of_arm.centre), math.log1p(NO_DIFFERENCE) - abs(of_arm.centre))

    def decides(n: int) -> bool:
        freedom = of_arm.freedom * (n - 1) / (of_arm.n - 1)
        return half_width(of_arm._replace(n=n, freedom=freedom), sequential, ALPHA) < size

    if of_arm.n < 2 or not decides(_MOST_UNITS):
        return None
    return max(1, bisect.bisect_left(range(_MOST_UNITS), True, lo=of_arm.n, key=decides) - of_arm.n)

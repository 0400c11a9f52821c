"""Which setting to use for which workload, "off" included: the first line of a report.

It reads what `trials.decisions` decides of all settings of a target together, as a bench and a search do: valid at
whatever time it is asked, and for the best of so many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlsd.analysis.results.speedups import Speedup
from mlsd.records import CONTROLS, Record
from mlsd.stats import Interval, grouped
from mlsd.trials.decisions import Effect


class BestSetting(Record, frozen=True, kw_only=True):
    """What was measured to be best for one target on one workload."""

    target: str
    workload: str
    n_settings: int  # that were compared with plain decoding
    n_undecided: int = 0  # of them
    arm: Speedup | None  # the fastest that is decided to be faster, else the best tried; None: no valid pair at all

    @property
    def ratio(self) -> Interval | None:
        """Its speedup; intervals of all settings hold together."""
        return None if self.arm is None else self.arm.ratio

    @property
    def effect(self) -> Effect:
        """Whether something is faster; undecided while nothing is and some setting may be."""
        own: Effect = "undecided" if self.arm is None else self.arm.effect
        return "undecided" if own != "faster" and self.n_undecided else own

    @property
    def use(self) -> str:
        """The setting to use, or ``off``: nothing else is decided to be faster."""
        return self.arm.setting if self.arm is not None and self.effect == "faster" else "off"


def best_settings(speedups: Iterable[Speedup]) -> list[BestSetting]:
    """One answer for each target and workload; `speedups` by workload, decided together.

    The fastest among the settings that are decided to be faster; without one, off, with the best of what was tried.
    A setting with a trial that is not valid was not decided, and is none.
    """
    compared = (speedup for speedup in speedups if speedup.drafter not in CONTROLS)
    groups = grouped(compared, lambda speedup: (speedup.target, speedup.workload or "all"))
    return [_best(target, workload, arms) for (target, workload), arms in groups.items()]


def _best(target: str, workload: str, arms: Sequence[Speedup]) -> BestSetting:
    found = [arm for arm in arms if arm.standing is not None]
    faster = [arm for arm in found if arm.effect == "faster"]
    standings = [arm.standing for arm in found if arm.standing is not None]
    return BestSetting(
        target=target,
        workload=workload,
        n_settings=len(found),
        n_undecided=sum(one.effect == "undecided" and one.out is None for one in standings),
        arm=max(faster or found, key=lambda arm: arm.ratio.value if arm.ratio else 0.0, default=None),
    )


def first_line(answers: Sequence[BestSetting]) -> str:
    """The answer in one line: what is decided to be faster, and off for the rest with the best that was tried."""
    if not answers:
        return "No speculative decoding was measured here, so there is no setting to choose."
    faster = [answer for answer in answers if answer.use != "off"]
    rest = [answer for answer in answers if answer.use == "off"]
    groups = grouped(faster, lambda answer: (answer.target, answer.use))
    parts = [f"on {target} {_clause(group)}" for (target, _), group in groups.items()]
    if rest:
        where = f"the other {len(rest)} of {len(answers)} pairs of target and workload" if faster else "everything here"
        parts.append(f"leave it off for {where}: {_best_of_rest(rest)}")
    most = max(answer.n_settings for answer in answers)
    how = f" Intervals hold for all {most} settings together." if most > 1 else ""
    return f"Speculative decoding: {'; '.join(parts)}.{how}"


def _best_of_rest(rest: Sequence[BestSetting]) -> str:
    tried = [answer for answer in rest if answer.arm is not None]
    if not tried:
        return "no pair of trials is valid"
    shown = max(tried, key=_value)
    undecided, unmeasured = sum(answer.effect == "undecided" for answer in tried), len(rest) - len(tried)
    doubts = [f"{undecided} of {len(rest)} are undecided"] if undecided else []
    doubts += [f"{unmeasured} have no valid pair of trials"] if unmeasured else []
    doubt = f" ({', '.join(doubts)})" if doubts else ""
    assert shown.arm is not None and shown.ratio is not None
    best = f"{shown.arm.setting} on {shown.target}, {shown.workload}: {words(shown.ratio)}"
    return f"nothing is decided to be faster{doubt}; best tried: {best}"


def by_target(answers: Sequence[BestSetting]) -> list[str]:
    """The answer for each target; what is the same for several workloads is said once."""
    sentences = []
    for target, own in grouped(answers, lambda answer: answer.target).items():
        groups = grouped(own, lambda answer: (answer.use, answer.effect, answer.arm is None))
        sentences.append(f"{target}: {'; '.join(_clause(group, len(own)) for group in groups.values())}.")
    return sentences


def _value(answer: BestSetting) -> float:
    return answer.ratio.value if answer.ratio is not None else 0.0


def _clause(group: Sequence[BestSetting], n_workloads: int = 0) -> str:
    names = ", ".join(answer.workload for answer in group)
    names = f"all {n_workloads} workloads ({names})" if len(group) == n_workloads > 1 else names
    shown = max(group, key=_value)
    if shown.arm is None or shown.ratio is None:
        return f"off for {names} (no valid pair of trials to judge by)"
    ratio = shown.ratio
    if shown.effect == "faster":
        worst = min((a.ratio for a in group if a.ratio), key=lambda r: r.value)
        span = words(ratio) if len(group) == 1 else f"{words(worst)} to {words(ratio)}"
        return f"use {shown.use} for {names}: {span}"
    on = f" on {shown.workload}" if len(group) > 1 else ""
    if shown.effect == "slower":
        return f"leave it off for {names}: the best setting, {shown.arm.setting}, reaches {words(ratio)}{on}"
    if shown.effect == "no difference":
        return (
            f"off for {names}: the best setting, {shown.arm.setting}, gives {words(ratio)}{on}, which is no difference"
        )
    standing = shown.arm.standing
    more = "" if standing is None or standing.effect != "undecided" else standing.words.removeprefix("undecided")
    return f"off for {names}, undecided: the best setting tried, {shown.arm.setting}, gives {words(ratio)}{on}{more}"


def words(ratio: Interval) -> str:
    """A speedup in words: ``1.21x (95 % 1.15 to 1.27)``."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x (one block, no interval)"
    if ratio.says_little:
        return f"{ratio.value:.2f}x (too few blocks for an interval: {ratio.n})"
    return f"{ratio.value:.2f}x (95 % {ratio.low:.2f} to {ratio.high:.2f})"

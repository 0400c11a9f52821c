"""Which setting to use for which workload, "off" included: the first line of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlsd.analysis.results.metrics import Effect, Speedup
from mlsd.records import Record
from mlsd.stats import Interval
from mlsd.units import format_percent


class Advice(Record, frozen=True, kw_only=True):
    """What to do for one target on one workload."""

    target: str
    workload: str
    effect: Effect  # of the best setting against plain decoding
    best: Speedup | None  # the setting with the highest speedup; None: none has a valid pair

    @property
    def use(self) -> str:
        """The setting to use, or ``off``: nothing else is decided to be faster."""
        return self.best.setting if self.best is not None and self.effect == "faster" else "off"


def advise(speedups: Iterable[Speedup]) -> list[Advice]:
    """One advice for each target and workload; `speedups` by workload.

    The fastest among the settings whose interval lies above 1; without one, off, with the best of what was tried: all
    of it slower, or undecided.
    """
    groups: dict[tuple[str, str], list[Speedup]] = {}
    for speedup in speedups:
        groups.setdefault((speedup.target, speedup.workload or "all"), []).append(speedup)
    return [_advice(target, workload, arms) for (target, workload), arms in groups.items()]


def _advice(target: str, workload: str, arms: Sequence[Speedup]) -> Advice:
    measured = [arm for arm in arms if arm.ratio is not None]
    if not measured:
        return Advice(target=target, workload=workload, effect="undecided", best=None)
    preferred = next((kind for effect in ("faster", "undecided") if (kind := _of(measured, effect))), measured)
    best = max(preferred, key=lambda arm: arm.ratio.value if arm.ratio else 0.0)
    return Advice(target=target, workload=workload, effect=best.effect, best=best)


def _of(arms: Sequence[Speedup], effect: str) -> list[Speedup]:
    return [arm for arm in arms if arm.effect == effect]


def first_line(advices: Sequence[Advice]) -> str:
    """The answer in one line: what is decided to be faster, and off for the rest with the best that was tried."""
    if not advices:
        return "No speculative decoding was measured here, so there is no setting to choose."
    faster = [advice for advice in advices if advice.use != "off"]
    rest = [advice for advice in advices if advice.use == "off"]
    groups: dict[tuple[str, str], list[Advice]] = {}
    for advice in faster:
        groups.setdefault((advice.target, advice.use), []).append(advice)
    parts = [f"on {target} {_clause(group)}" for (target, _), group in groups.items()]
    if rest:
        where = f"the other {len(rest)} of {len(advices)} pairs of target and workload" if faster else "everything here"
        parts.append(f"leave it off for {where}: {_best_of_rest(rest)}")
    text = "; ".join(parts)
    return f"Speculative decoding: {text}."


def _best_of_rest(rest: Sequence[Advice]) -> str:
    tried = [advice for advice in rest if advice.best is not None]
    if not tried:
        return "no pair of trials is valid"
    shown = max(tried, key=_value)
    undecided = sum(advice.effect == "undecided" for advice in rest)
    doubt = f", {undecided} of {len(rest)} are undecided" if undecided else ""
    assert shown.best is not None and shown.best.ratio is not None
    best = f"{shown.best.setting} on {shown.target}, {shown.workload}: {words(shown.best.ratio)}"
    return f"nothing is decided to be faster{doubt}; best tried: {best}"


def by_target(advices: Sequence[Advice]) -> list[str]:
    """The answer for each target; what is the same for several workloads is said once."""
    sentences = []
    for target in dict.fromkeys(advice.target for advice in advices):
        own = [advice for advice in advices if advice.target == target]
        groups: dict[tuple[str, Effect, bool], list[Advice]] = {}
        for advice in own:
            groups.setdefault((advice.use, advice.effect, advice.best is None), []).append(advice)
        sentences.append(f"{target}: {'; '.join(_clause(group, len(own)) for group in groups.values())}.")
    return sentences


def _value(advice: Advice) -> float:
    return advice.best.ratio.value if advice.best is not None and advice.best.ratio is not None else 0.0


def _clause(group: Sequence[Advice], n_workloads: int = 0) -> str:
    names = ", ".join(advice.workload for advice in group)
    names = f"all {n_workloads} workloads ({names})" if len(group) == n_workloads > 1 else names
    shown = max(group, key=_value)
    if shown.best is None or shown.best.ratio is None:
        return f"off for {names} (no valid pair of trials to judge by)"
    ratio = shown.best.ratio
    if shown.effect == "faster":
        worst = min((a.best.ratio for a in group if a.best and a.best.ratio), key=lambda r: r.value)
        span = words(ratio) if len(group) == 1 else f"{words(worst)} to {words(ratio)}"
        return f"use {shown.use} for {names}: {span}"
    on = f" on {shown.workload}" if len(group) > 1 else ""
    if shown.effect == "slower":
        return f"leave it off for {names}: the best setting, {shown.best.setting}, reaches {words(ratio)}{on}"
    seen = shown.best.smallest_effect
    limit = "" if seen is None else f", where an effect of {format_percent(seen, 0)} would have shown"
    return f"off for {names}, undecided: {shown.best.setting} gives {words(ratio)}{on}{limit}"


def words(ratio: Interval) -> str:
    """A speedup in words: ``1.21x (95 % 1.15 to 1.27)``."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x (one block, no interval)"
    return f"{ratio.value:.2f}x (95 % {ratio.low:.2f} to {ratio.high:.2f})"

"""Which setting to use for which workload, "off" included: the first line of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlsd.analysis.metrics import Effect, Speedup
from mlsd.analysis.stats import Interval
from mlsd.records import Record
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
    """The answer in one sentence a target; what is the same for several workloads is said once."""
    if not advices:
        return "No speculative decoding was measured here, so there is no setting to choose."
    sentences = []
    for target in dict.fromkeys(advice.target for advice in advices):
        own = [advice for advice in advices if advice.target == target]
        groups: dict[tuple[str, Effect, bool], list[Advice]] = {}
        for advice in own:
            groups.setdefault((advice.use, advice.effect, advice.best is None), []).append(advice)
        sentences.append(f"{target}: {'; '.join(_clause(group, len(own)) for group in groups.values())}.")
    return " ".join(sentences)


def _clause(group: Sequence[Advice], n_workloads: int) -> str:
    names = ", ".join(advice.workload for advice in group)
    names = f"all {n_workloads} workloads ({names})" if len(group) == n_workloads > 1 else names
    shown = max(group, key=lambda advice: advice.best.ratio.value if advice.best and advice.best.ratio else 0.0)
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

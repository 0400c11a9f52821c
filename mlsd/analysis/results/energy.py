"""Joules per token of plain decoding and of speculation, in pairs: does it save energy where it saves no time?

Of whole generations, prompts included. Trials of one setting are joined until their windows hold ten seconds; a counter
that stands still or jumps back gives nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlsd.measure.run.checks import counter_fault
from mlsd.records import Record, Trial
from mlsd.trials.results import ArmResult

LEAST_S = 10.0


class Joules(Record, frozen=True, kw_only=True):
    """What some trials took together."""

    per_token: float | None
    window_s: float
    why_not: str = ""


class EnergyRow(Record, frozen=True, kw_only=True):
    """One setting against the plain trials of its own blocks."""

    arm: ArmResult
    source: str  # which counter
    plain: Joules
    speculative: Joules

    @property
    def ratio(self) -> float | None:
        """Energy of a token, speculative / plain: below 1 it saves."""
        if self.plain.per_token is None or self.speculative.per_token is None:
            return None
        return self.speculative.per_token / self.plain.per_token


def joules(trials: Sequence[Trial]) -> Joules:
    """Energy over output tokens of trials whose counters were read."""
    read = [t.conditions for t in trials if t.conditions is not None and t.conditions.energy_mj is not None]
    window_s = sum(c.generation_ns or 0 for c in read) / 1e9
    if not read or len(read) < len(trials):
        return Joules(per_token=None, window_s=window_s, why_not="not every trial has a counter's readings")
    if fault := counter_fault(trials):
        return Joules(per_token=None, window_s=window_s, why_not=fault)
    if window_s < LEAST_S:
        return Joules(per_token=None, window_s=window_s, why_not=f"{window_s:.1f} s of {LEAST_S:.0f} that are needed")
    total_j = sum(c.energy_mj or 0.0 for c in read) / 1000
    return Joules(per_token=total_j / sum(len(t.tokens) for t in trials), window_s=window_s)


def energy_rows(results: Iterable[ArmResult]) -> list[EnergyRow]:
    """Every setting of which energy was read, with the plain trials of the same blocks."""
    found = []
    for one in results:
        sources = {pair.own.trial.conditions.energy_source for pair in one.pairs if pair.own.trial.conditions}
        if one.n_valid and (source := next((name for name in sources if name is not None), None)):
            plain, own = (joules([pair[i].trial for pair in one.pairs]) for i in (0, 1))
            found.append(EnergyRow(arm=one, source=source, plain=plain, speculative=own))
    return found

"""A race: which arms of a load go on is asked of `trials.decisions` after every block, until all is decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Literal

from mlsd.planning.job import Slot
from mlsd.planning.request import MOST_BLOCKS, Goal
from mlsd.records import Case, Trial
from mlsd.stats import grouped
from mlsd.trials.decisions import Decision
from mlsd.trials.results import Measured, Question, SessionPlan, as_measured, decisions, spoils
from mlsd.units import NS_PER_S

Stop = Literal["decided", "spoilt", "budget", "blocks"]


STOPPED: Mapping[Stop, str] = {
    "decided": "every arm is decided or can no longer win",
    "spoilt": "an answer cannot be used, so nothing more can be decided",
    "budget": "the time is used up",
    "blocks": f"after {MOST_BLOCKS} blocks",
}


ANY_LOOK = SessionPlan(looks="any")


class Race:
    """Chooses block by block; see `decisions` and `stopped` when it is over."""

    def __init__(
        self,
        goal: Goal,
        *,
        plan: SessionPlan = ANY_LOOK,
        earlier: Iterable[Measured] = (),
        now_s: Callable[[], float] = time.monotonic,
        began_s: float | None = None,
    ) -> None:
        """`earlier` trials of the same session count as blocks of their own; the budget runs from `began_s`, or now."""
        self._goal, self._plan, self._now_s = goal, plan, now_s
        self._began_s = now_s() if began_s is None else began_s
        self._chosen_s: float | None = None  # when the last block was chosen
        self._overhead: float | None = None  # judging, rests, warm-ups of the last block over the time of its trials
        self._cases: dict[str, Case] = {}
        self._trials: list[Measured] = list(earlier)
        self._took_s = {one.trial.case_id: _took_s(one.trial) for one in self._trials}
        self._n_taken = 0
        self._planned: set[str] = set()  # names of the arms that a block may hold
        self._repeat = -1  # the last one that was chosen
        self._anchors: dict[Question, str] = {}
        self.decisions: Mapping[Question, Decision] = {}
        self.stopped: Stop = "blocks"

    def choose(self, left: Sequence[Slot], measured: Sequence[Trial]) -> Sequence[Slot]:
        """The next block of every prompt that is not decided: plain decoding, and the arms that may still win."""
        self._cases |= {slot.case_id: slot.case for slot in left}
        later = measured[self._n_taken :]
        self._time(later)
        self._trials += as_measured((self._cases[trial.case_id], trial) for trial in later)
        self._took_s |= {trial.case_id: _took_s(trial) for trial in later}
        self._n_taken = len(measured)
        if self._trials:
            self.decisions = self._judged()
        coming = [slot for slot in left if slot.repeat > self._repeat]
        block = [slot for slot in coming if slot.repeat == coming[0].repeat]
        self._planned = {name for slot in block if (name := self._plan.name(slot.case)) is not None}
        new = {self._plan.question(slot.case) for slot in block if self._is_new(slot.case)}
        chosen = [slot for slot in block if self._goes_on(slot.case, new)]
        if coming and all(self._plan.name(slot.case) is None for slot in chosen):
            # A bench's arm that failed cannot win; of two servers it leaves the question open, as does no time at all.
            open_ = not self.decisions or (
                self._plan.base and not any(one.standings for one in self.decisions.values())
            )
            self.stopped = "spoilt" if open_ else "decided"
            return ()
        if chosen and not (chosen := self._fitting(chosen)):
            self.stopped = "budget"
            return ()
        self._repeat = coming[0].repeat if coming else self._repeat
        self._chosen_s = self._now_s()
        return chosen

    def _time(self, block: Sequence[Trial]) -> None:
        """What a block took beside its trials: of the first one, which holds the loading, as long again at most."""
        trials_s = sum(map(_took_s, block))
        if self._chosen_s is not None and trials_s > 0:
            overhead = max(self._now_s() - self._chosen_s - trials_s, 0.0) / trials_s
            self._overhead = min(overhead, 1.0) if self._overhead is None else overhead

    def _fitting(self, chosen: list[Slot]) -> list[Slot]:
        """The blocks that will end in time, by what the last ones took; of the first nothing is known."""
        if self._goal.budget_s is None or not self._took_s:
            return chosen
        left_s, fitting = self._goal.budget_s - (self._now_s() - self._began_s), list[Slot]()
        for slots in grouped(chosen, lambda slot: self._plan.question(slot.case)).values():
            left_s -= (1 + (self._overhead or 0.0)) * sum(self._took_s.get(slot.case_id, 0.0) for slot in slots)
            if left_s <= 0:
                break
            fitting += slots
        return fitting

    def _judged(self) -> dict[Question, Decision]:
        found = decisions(self._trials, self._plan, self._anchors)
        for group, decision in found.items():
            if decision.leader is not None and len(decision.racing) < len(decision.standings):
                self._anchors.setdefault(group, decision.leader)  # the first that leads when one drops out
        return found

    def _is_new(self, case: Case) -> bool:
        """Whether an arm has no standing and did not fail."""
        decision, name = self.decisions.get(self._plan.question(case)), self._plan.name(case)
        known = name is None or (decision is not None and decision.of(name) is not None)
        return not known and not self._failed(case)

    def _goes_on(self, case: Case, new: Container[Question]) -> bool:
        group, name = self._plan.question(case), self._plan.name(case)
        decision = self.decisions.get(group)
        if decision is None:
            return not self._n_taken  # nothing of it could be timed
        if group not in new and decision.done(self._goal.within, self._planned):
            return False
        return name is None or name in decision.racing or self._is_new(case)

    def _failed(self, case: Case) -> bool:
        name, prompt = self._plan.name(case), case.prompt
        return any(
            self._plan.name(one.case) == name and one.case.prompt == prompt and spoils(one) for one in self._trials
        )


def _took_s(trial: Trial) -> float:
    """What a trial took but for its judging."""
    parts = (trial.prefill_ns, trial.draft_prefill_ns, trial.decode_ns)
    whole_ns = trial.conditions and trial.conditions.generation_ns
    return (whole_ns or sum(ns or 0 for ns in parts)) / NS_PER_S

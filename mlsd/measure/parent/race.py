"""A race: which arms of a load go on is asked of `trials.decisions` after every block, until all is decided."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from mlsd.measure.parent.blocks import Choice
from mlsd.planning.job import Block
from mlsd.planning.options import Goal
from mlsd.planning.request import MOST_BLOCKS
from mlsd.records import Case, Trial
from mlsd.stats import grouped
from mlsd.trials.decisions import Decision
from mlsd.trials.intervals import Stopping
from mlsd.trials.results import Measured, Question, SessionPlan, decisions, is_unusable
from mlsd.trials.stages import PREPARATION, StageTime, wall_ns
from mlsd.units import NS_PER_S

Stop = Literal["decided", "spoilt", "budget", "blocks"]


STOPPED: Mapping[Stop, str] = {
    "decided": "every arm is decided or can no longer win",
    "spoilt": "an answer cannot be used, so nothing more can be decided",
    "budget": "the time is used up",
    "blocks": f"after {MOST_BLOCKS} blocks",
}


SEQUENTIAL = SessionPlan(stopping=Stopping.SEQUENTIAL)


class Race(Choice):
    """Chooses block by block; see `decisions` and `stopped` when it is over."""

    def __init__(
        self,
        goal: Goal,
        *,
        plan: SessionPlan = SEQUENTIAL,
        earlier: Iterable[Measured] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`earlier` trials of the same session count as blocks of their own."""
        self._goal, self._plan, self._now_s = goal, plan, now_s
        self._began_s: float | None = None  # when the first block was chosen
        self._prepared_s = 0.0  # since then, of the workers that get ready, which is not measuring
        self._prepared_before_s = 0.0  # of that before the last block was chosen
        self._chosen_s: float | None = None  # when the last block was chosen
        self._overhead: float | None = None  # judging, rests, warm-ups of the last block over the time of its trials
        self._earlier = tuple(earlier)
        self._trials: list[Measured] = list(self._earlier)
        self._repeat = -1  # the last one that was chosen
        self._anchors: dict[Question, str] = {}  # the first that led when one dropped out
        self.decisions: Mapping[Question, Decision] = {}
        self.stopped: Stop = "blocks"

    def next(self, left: Sequence[Block], measured: Sequence[Measured]) -> Sequence[Block]:
        """The next block of every prompt that is not decided: plain decoding, and the arms that may still win."""
        self._time(measured[len(self._trials) - len(self._earlier) :])
        self._trials = [*self._earlier, *measured]
        if self._trials:
            self.decisions = decisions(self._trials, self._plan, self._anchors)
            for question, decision in self.decisions.items():
                if decision.leader is not None and len(decision.racing) < len(decision.standings):
                    self._anchors.setdefault(question, decision.leader)
        coming = [block for block in left if block.repeat > self._repeat]
        blocks = [block for block in coming if block.repeat == coming[0].repeat]
        chosen = self._still_racing(blocks)
        if coming and all(self._plan.name(slot.case) is None for block in chosen for slot in block.slots):
            # A bench's arm that failed cannot win; of two servers it leaves the question open, as does no time at all.
            open_ = not self.decisions or (
                self._plan.base and not any(decision.standings for decision in self.decisions.values())
            )
            self.stopped = "spoilt" if open_ else "decided"
            return ()
        if chosen and not (chosen := self._fitting(chosen)):
            self.stopped = "budget"
            return ()
        self._repeat = coming[0].repeat if coming else self._repeat
        self._chosen_s, self._prepared_before_s = self._now_s(), self._prepared_s
        if self._began_s is None:
            self._began_s = self._chosen_s
        return chosen

    def account(self, stages: Iterable[StageTime]) -> None:
        self._prepared_s += wall_ns(stages, PREPARATION) / NS_PER_S

    @property
    def spent_s(self) -> float:
        """What of the budget is used: the time since the first block was chosen, without what got ready for it."""
        return 0.0 if self._began_s is None else self._now_s() - self._began_s - self._prepared_s

    def is_over(self) -> bool:
        budget_s = self._goal.budget_s
        if budget_s is None or self.spent_s < budget_s:
            return False
        self.stopped = "budget"
        return True

    def _time(self, block: Sequence[Measured]) -> None:
        """What a block took beside its trials and getting ready: of the first one as long again at most."""
        trials_s = sum(_took_s(measured.trial) for measured in block)
        if self._chosen_s is not None and trials_s > 0:
            prepared_s = self._prepared_s - self._prepared_before_s
            overhead = max(self._now_s() - self._chosen_s - prepared_s - trials_s, 0.0) / trials_s
            self._overhead = min(overhead, 1.0) if self._overhead is None else overhead

    def _still_racing(self, blocks: Sequence[Block]) -> list[Block]:
        """What of these blocks may still win, with plain decoding; nothing of questions that are decided."""
        cases = [slot.case for block in blocks for slot in block.slots]
        planned = {name for case in cases if (name := self._plan.name(case)) is not None}
        new = {self._plan.question(case) for case in cases if self._is_new(case)}

        def goes_on(case: Case) -> bool:
            question, name = self._plan.question(case), self._plan.name(case)
            decision = self.decisions.get(question)
            if decision is None:  # nothing of it could be timed: it goes on where only the machine was in the way
                return not any(
                    is_unusable(measured) for measured in self._trials if self._plan.question(measured.case) == question
                )
            if question not in new and decision.done(self._goal.within, planned):
                return False
            return name is None or name in decision.racing or self._is_new(case)

        racing = (tuple(slot for slot in block.slots if goes_on(slot.case)) for block in blocks)
        return [Block(slots=slots) for slots in racing if slots]

    def _is_new(self, case: Case) -> bool:
        """Whether an arm has no standing and did not fail."""
        decision, name = self.decisions.get(self._plan.question(case)), self._plan.name(case)
        if name is None or (decision is not None and decision.of(name) is not None):
            return False
        measured = (row for row in self._trials if self._plan.name(row.case) == name and row.case.prompt == case.prompt)
        return not any(map(is_unusable, measured))

    def _fitting(self, chosen: list[Block]) -> list[Block]:
        """The blocks that will end in time, by what the last ones took; the first comes whatever it takes."""
        if self._goal.budget_s is None or len(self._trials) == len(self._earlier):
            return chosen
        took_s = {measured.trial.case_id: _took_s(measured.trial) for measured in self._trials}
        left_s, fitting = self._goal.budget_s - self.spent_s, list[Block]()
        for blocks in grouped(chosen, lambda block: self._plan.question(block.slots[0].case)).values():
            cases = [slot.case_id for block in blocks for slot in block.slots]
            left_s -= (1 + (self._overhead or 0.0)) * sum(took_s.get(case_id, 0.0) for case_id in cases)
            if left_s <= 0:
                break
            fitting += blocks
        return fitting


def _took_s(trial: Trial) -> float:
    """What a trial took but for its judging."""
    parts = (trial.prefill_ns, trial.draft_prefill_ns, trial.decode_ns)
    whole_ns = trial.conditions and trial.conditions.generation_ns
    return (whole_ns or sum(ns or 0 for ns in parts)) / NS_PER_S

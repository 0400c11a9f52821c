"""Which blocks were disturbed: by heat, by sleep, or by other programs that the worker waited for.

A disturbed block is measured again. On a machine that each block heats no other measurement ever comes: after
`MOST_TRIES` what was hot is stored and marked, and the times of what was starved are not used. Only a trial that is
valid by itself can become hot or disturbed, so that no false output ever counts.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from mlsd.measure.bench import BlockBench
from mlsd.measure.heat import Heat, Tell, rest_for
from mlsd.measure.messages import BlockMeasured
from mlsd.planning.job import Block, BlockKey, Job
from mlsd.records import Anchors, Status, Trial
from mlsd.trials.decisions import WAITED_SHARE
from mlsd.trials.results import waited_ns

MOST_TRIES = 2  # measurements of a block that were disturbed, those of earlier runs included, before the last one
DISTURBED_NS = 10**9  # shorter waits are scatter, and repeats show it


class Judged(NamedTuple):
    """A block as it is to be stored, and whether it is to be measured again."""

    block: Block
    trials: tuple[Trial, ...]
    again: str = ""  # why; empty: this was its last measurement


class BlockJudge:
    """Blocks that were measured: whether each was undisturbed, and whether the machine is cool enough for the next."""

    def __init__(self, *, on_device: bool, tries: Counter[BlockKey] | None = None) -> None:
        """`tries`: how often each block was disturbed in earlier runs."""
        self._on_device, self._tries, self._heat = on_device, Counter(tries or {}), Heat()
        self._measured: dict[BlockKey, Judged] = {}
        self._n_of_job = 0  # blocks of the job in progress that were measured

    def begin(self, job: Job) -> None:
        """A job begins, in a worker that may have measured nothing."""
        self._job, self._keys, self._n_of_job = job, {block.key for block in job.blocks}, 0
        self._heat.newest = None

    def rest(self, bench: BlockBench, tell: Tell, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Before a block: rest until it is cool, or for as long as was asked for between two; False: time is up."""
        if self._job.cool_down_s is not None:
            return not self._n_of_job or rest_for(bench, self._job.cool_down_s, tell, is_over)
        if not self._n_of_job:
            self._heat.judge(bench, bench.read_anchors())
        return self._heat.rest(bench, tell, is_over)

    def judge(self, bench: BlockBench, block: Block, answer: BlockMeasured) -> Iterator[Judged]:
        """The block that was measured, and earlier ones that its times show to have been disturbed."""
        self._n_of_job += 1
        watched, before = self._job.cool_down_s is None, self._heat.newest
        trials = tuple(_felt(trial, before) for trial in answer.trials) if watched else answer.trials
        why = self._heat.judge(bench, answer.anchors) if watched else None
        for judged in self._judged(block, trials, why):
            # One of an earlier job cannot be measured again now.
            yield judged if judged.block.key in self._keys else judged._replace(again="")

    def _judged(self, block: Block, trials: Sequence[Trial], heat: str | None = None) -> Iterator[Judged]:
        self._measured[block.key] = Judged(block, tuple(trials))
        if heat is not None:
            status = Status.HOT if self._tries[block.key] >= MOST_TRIES else Status.DISTURBED
            yield self._marked(block.key, dict.fromkeys(range(len(trials)), heat), status)
            return
        places = [(key, index) for key, judged in self._measured.items() for index in range(len(judged.trials))]
        reason_of = disturbed([self._measured[key].trials[index] for key, index in places], on_device=self._on_device)
        reasons: dict[BlockKey, dict[int, str]] = defaultdict(dict)
        for at, reason in reason_of.items():
            key, index = places[at]
            if self._measured[key].trials[index].status is Status.VALID:
                reasons[key][index] = reason
        for key, of_block in reasons.items():
            yield self._marked(key, of_block, Status.DISTURBED)
        if block.key not in reasons:
            yield self._measured[block.key]

    def _marked(self, key: BlockKey, reasons: dict[int, str], status: Status) -> Judged:
        """A measured block whose valid trials at these places get another status."""
        block, trials, _ = self._measured[key]
        changed = {place: why for place, why in reasons.items() if trials[place].status is Status.VALID}
        marked = tuple(
            msgspec.structs.replace(trial, status=status, reason=changed[place]) if place in changed else trial
            for place, trial in enumerate(trials)
        )
        self._measured[key] = Judged(block, marked)
        again = next(iter(changed.values()), "") if self._tries[key] < MOST_TRIES else ""
        self._tries[key] += bool(changed)
        return Judged(block, marked, again)


def _felt(trial: Trial, anchors: Anchors | None) -> Trial:
    """A trial with the anchors that were read before its block."""
    if trial.conditions is None:
        return trial
    return msgspec.structs.replace(trial, conditions=msgspec.structs.replace(trial.conditions, anchors=anchors))


def disturbed(trials: Sequence[Trial], *, on_device: bool = False) -> dict[int, str]:
    """Places of trials in which the worker was stopped or starved, each with the reason why its time is not used.

    W and P are the medians of wall and processor time of the case's other trials. A generation that took w and p waited
    (w - W) - (p - P) W / P: what is longer than usual and was not computed. It is disturbed from a quarter of W on, and
    from a quarter of w on where no thread of the worker ran for so long (w - p), however long its repeats waited. Of
    work `on_device` the processor knows nothing: there w - W of decoding decides, whether the prompt was read anew or
    not, and heat is one of the reasons.
    """
    by_case = defaultdict(list)
    for index, trial in enumerate(trials):
        c = trial.conditions
        if trial.status is Status.FAILED or c is None or c.generation_ns is None or c.processor_ns is None:
            continue
        wall_ns = trial.decode_ns if on_device and trial.decode_ns is not None else c.generation_ns
        by_case[trial.case_id].append((index, wall_ns, c.processor_ns))
    reasons = {}
    for index, trial in enumerate(trials):
        took_ns = 0 if trial.conditions is None else trial.conditions.generation_ns or 0
        idle_ns = 0 if on_device or trial.status is Status.FAILED else waited_ns(trial)
        if idle_ns > max(DISTURBED_NS, WAITED_SHARE * took_ns):
            reasons[index] = f"no thread of the worker ran for {idle_ns / 1e9:.1f} of {took_ns / 1e9:.1f} s"
    for case in by_case.values():
        for index, wall, processor in case if len(case) > 1 else ():
            usual = statistics.median(w for i, w, _ in case if i != index)
            computed = statistics.median(p for i, _, p in case if i != index)
            computed_more = 0.0 if on_device else max(0.0, processor - computed) * usual / max(computed, 1.0)
            waited = (wall - usual) - computed_more
            if waited > max(DISTURBED_NS, WAITED_SHARE * usual):
                what = "heat, sleep or other work on the device took" if on_device else "the worker waited for"
                reasons[index] = (
                    f"{what} {waited / 1e9:.1f} of {wall / 1e9:.1f} s; its other repeats took {usual / 1e9:.1f} s"
                )
    return reasons

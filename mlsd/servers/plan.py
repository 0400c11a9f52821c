"""What is asked of which server, and in which order: blocks in random order, in each every arm's requests at once."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from mlsd.errors import InputError
from mlsd.planning.job import Slot
from mlsd.planning.prompts import Prompt
from mlsd.planning.request import MOST_BLOCKS, Goal
from mlsd.records import Case, EngineOptions, Record, Sampling

SERVERS = "server"  # the study that trials go to, and the suite of a request alone; `server-parallel-N` of N at once


class Ask(Record, frozen=True, kw_only=True):
    """What to measure on servers that are ready; nothing here says which."""

    n_predict: int = 128
    repeats: int = 3
    goal: Goal | None = None  # in place of `repeats`
    sampling: Sampling = Sampling()
    ignore_eog: bool = True
    parallel: tuple[int, ...] = (1,)  # requests at once
    seed: int = 0
    engine: EngineOptions = EngineOptions()  # of launched servers, and of our own loop
    with_engine: bool = False  # measure our own loop in the same blocks


class RequestGroup(Record, frozen=True, kw_only=True):
    """Slots that belong together: one arm's requests, sent at once; or our own loop's, run in one worker."""

    arm: int | None  # place of the server; None: our own loop
    slots: tuple[Slot, ...]


CasesOf = Callable[[int | None, Prompt, str], Iterable[Case]]  # of an arm, on a prompt, in a suite


def turns(
    n_servers: int, ask: Ask, prompts: Sequence[Prompt], cases: CasesOf, first_repeat: int
) -> tuple[RequestGroup, ...]:
    """Repeats outermost; blocks in random order, arms in random order within, the first server first at first."""
    made: list[RequestGroup] = []
    for repeat in range(first_repeat, first_repeat + (MOST_BLOCKS if ask.goal else ask.repeats)):
        blocks = [(n, group) for n in ask.parallel for group in _groups(prompts, n)]
        random.Random(f"{ask.seed} {repeat}").shuffle(blocks)
        for number, (n, group) in enumerate(blocks):
            arms: list[int | None] = [*range(n_servers), *([None] if ask.with_engine and n == 1 else [])]
            random.Random(f"{ask.seed} {repeat} {number}").shuffle(arms)
            if repeat == first_repeat:
                arms.sort(key=lambda arm: arm != 0)
            made += _block(arms, group, cases, repeat, n)
    return tuple(made)


def _block(
    arms: Sequence[int | None], group: Sequence[Prompt], cases: CasesOf, repeat: int, n: int
) -> Iterator[RequestGroup]:
    positions = itertools.count()
    suite = SERVERS if n == 1 else f"{SERVERS}-parallel-{n}"
    others = "" if n == 1 else f" {' '.join(prompt.key for prompt in group)}"  # a prompt may top up another group
    for arm in arms:
        slots = []
        for case in (case for prompt in group for case in cases(arm, prompt, suite)):
            number = f"{repeat} {n} {case.prompt.sha256} {case.prompt.n_tokens} {case.n_predict}{others}"
            block = int(hashlib.sha256(number.encode()).hexdigest()[:12], 16)
            slots.append(Slot(case=case, case_id=case.id, block=block, repeat=repeat, position=next(positions)))
        yield RequestGroup(arm=arm, slots=tuple(slots))


def _groups(prompts: Sequence[Prompt], n: int) -> list[tuple[Prompt, ...]]:
    """The prompts, `n` at a time, the last ones topped up from the first."""
    if len(prompts) < n:
        raise InputError(
            f"{n} requests at once need {n} different prompts; {len(prompts)} were given.", hint="Add --prompt."
        )
    around = (*prompts, *prompts)
    return [around[i : i + n] for i in range(0, len(prompts), n)]

"""What is asked of which server, and in which order: blocks in random order, in each every arm's requests at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mlsd.errors import InputError
from mlsd.planning.job import Block
from mlsd.planning.plan import block_in_order
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


Arm = int | None  # place of the server; None: our own loop
CasesOf = Callable[[Arm, Prompt, str], Iterable[Case]]  # of an arm, on a prompt, in a suite


class ServerPlan(NamedTuple):
    """Blocks in their order, and which arm each case belongs to. The slots of an arm stand together: asked at once."""

    blocks: tuple[Block, ...]
    arm_of: dict[str, Arm]  # by case id


def plan_servers(n_servers: int, ask: Ask, prompts: Sequence[Prompt], cases: CasesOf, first_repeat: int) -> ServerPlan:
    """Repeats outermost; blocks in random order, arms in random order within, the first server first at first."""
    made: list[Block] = []
    arm_of: dict[str, Arm] = {}
    for repeat in range(first_repeat, first_repeat + (MOST_BLOCKS if ask.goal else ask.repeats)):
        groups = [(n, group) for n in ask.parallel for group in _groups(prompts, n)]
        random.Random(f"{ask.seed} {repeat}").shuffle(groups)
        for number, (n, group) in enumerate(groups):
            arms: list[Arm] = [*range(n_servers), *([None] if ask.with_engine and n == 1 else [])]
            random.Random(f"{ask.seed} {repeat} {number}").shuffle(arms)
            if repeat == first_repeat:
                arms.sort(key=lambda arm: arm != 0)
            suite = SERVERS if n == 1 else f"{SERVERS}-parallel-{n}"
            ordered = [(arm, case) for arm in arms for prompt in group for case in cases(arm, prompt, suite)]
            arm_of |= {case.id: arm for arm, case in ordered}
            made.append(block_in_order([case for _, case in ordered], repeat))
    return ServerPlan(tuple(made), arm_of)


def _groups(prompts: Sequence[Prompt], n: int) -> list[tuple[Prompt, ...]]:
    """The prompts, `n` at a time, the last ones topped up from the first."""
    if len(prompts) < n:
        raise InputError(
            f"{n} requests at once need {n} different prompts; {len(prompts)} were given.", hint="Add --prompt."
        )
    around = (*prompts, *prompts)
    return [around[i : i + n] for i in range(0, len(prompts), n)]

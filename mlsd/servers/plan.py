"""What is asked of which server, and in which order: blocks in random order, in each every arm's requests at once."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mlsd.errors import InputError
from mlsd.planning.job import Block, TrialRole, blocks_of
from mlsd.planning.plan import in_order
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
    """A block for each group of prompts that are asked for at once, with a turn for every arm."""
    arm_of: dict[str, Arm] = {}
    blocks = list[list[tuple[Case, str, TrialRole]]]()
    for n in ask.parallel:
        arms: list[Arm] = [*range(n_servers), *([None] if ask.with_engine and n == 1 else [])]
        suite = SERVERS if n == 1 else f"{SERVERS}-parallel-{n}"
        for group in _groups(prompts, n):
            own = [(arm, case) for arm in arms for prompt in group for case in cases(arm, prompt, suite)]
            arm_of |= {case.id: arm for arm, case in own}
            blocks.append([(case, case.id, "study") for _, case in own])
    last = first_repeat + (MOST_BLOCKS if ask.goal else ask.repeats)
    slots = in_order(dict.fromkeys(range(first_repeat, last), blocks), ask.seed, turn=arm_of.__getitem__)
    return ServerPlan(blocks_of(slots), arm_of)


def _groups(prompts: Sequence[Prompt], n: int) -> list[tuple[Prompt, ...]]:
    """The prompts, `n` at a time, the last ones topped up from the first."""
    if len(prompts) < n:
        raise InputError(
            f"{n} requests at once need {n} different prompts; {len(prompts)} were given.", hint="Add --prompt."
        )
    around = (*prompts, *prompts)
    return [around[i : i + n] for i in range(0, len(prompts), n)]

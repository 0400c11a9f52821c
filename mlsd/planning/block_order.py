"""The order of blocks, and of the arms in each.

A block holds the arms that are measured together, in random order, plain decoding among them. Repeats are the outermost
loop, so that slow drift of the machine spreads over all cases. Order is not mirrored from block to block (ABBA): with a
linear drift that makes the error of a speedup two to three times smaller and its interval 4 to 17 % wider, but where
speed goes up and down within two blocks, 95 % intervals cover 68 to 92 % (simulated; random orders 91 to 97 %).
"""

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from mlsd.planning.job import Slot, TrialRole
from mlsd.records import Case
from mlsd.stats import grouped

PlannedCase = tuple[Case, str, TrialRole]  # with its id


def order_blocks(
    repeats: Mapping[int, Iterable[Sequence[PlannedCase]]],
    seed: int,
    side: str = "",
    turn: Callable[[str], object] = str,
) -> tuple[Slot, ...]:
    """Repeats outermost; within a repeat the blocks, and within a block the turns, in random order from the seed.

    `turn` says by a case's id which of its block it belongs to; by itself each case is a turn of its own. A block's
    number and order depend on nothing but its own content and the seed.
    """
    slots: list[Slot] = []
    for repeat, blocks in repeats.items():
        once = list[list[Slot]]()
        for cases in blocks:
            number = block_number(repeat, (case_id for _, case_id, _ in cases), side)
            turns = list(grouped(cases, lambda case: turn(case[1])).values())
            random.Random(f"{seed} {number}").shuffle(turns)
            once.append(
                [
                    Slot(case=case, case_id=case_id, block=number, repeat=repeat, position=position, role=role)
                    for position, (case, case_id, role) in enumerate(itertools.chain.from_iterable(turns))
                ]
            )
        random.Random(f"{seed} {repeat}").shuffle(once)
        slots += itertools.chain.from_iterable(once)
    return tuple(slots)


def block_number(repeat: int, case_ids: Iterable[str], side: str = "") -> int:
    """The number of the block that measures these cases in a repeat, on a side where there are several."""
    content = " ".join([str(repeat), *sorted(case_ids), *filter(None, (side,))])
    return int(hashlib.sha256(content.encode()).hexdigest()[:12], 16)

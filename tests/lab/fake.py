"""A lab without a network: machines that measure by hand, die, come late, and say things twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from mlsd.lab.machine import Card, Ended, Origin
from mlsd.measure.messages import BlockMeasured
from mlsd.measure.parent.blocks import Experiment
from mlsd.planning.job import Block, Job, ModelFile, Slot, prompt_key
from mlsd.planning.prompts import Prompt
from mlsd.records import Conditions, Environment, Round, Status, Trial
from tests.measure.examples import ENVIRONMENT, MODEL, case, trial

Said = tuple[str, BlockMeasured | Ended]
ORIGIN = Origin(mlsd_version="1", llama_cpp_build="b1", llama_cpp_python_version="0.3", suites_sha256="s")


def card(host: str = "a", **changes: object) -> Card:
    environment: Environment = msgspec.structs.replace(ENVIRONMENT, host=host * 16)
    base = Card(
        environment=environment,
        origin=ORIGIN,
        models=(MODEL, msgspec.structs.replace(MODEL, ref=_draft())),
        makes=(),
        may_pull=False,
        free_disk_bytes=10**12,
        conditions=Conditions(),
    )
    return msgspec.structs.replace(base, **changes)


def _draft():  # type: ignore[no-untyped-def]
    draft = case(4).drafter.draft
    assert draft is not None
    return draft


def plan(n_loads: int = 2, n_blocks: int = 4) -> Experiment:
    """Loads of blocks of a plain and two speculative arms; every case of a load is its own."""
    loads = []
    for load in range(n_loads):
        cases = [case(gamma, n_predict=8 + load) for gamma in (0, 4, 8)]
        slots = tuple(
            Slot(case=c, case_id=c.id, block=load * n_blocks + block, repeat=block, position=position)
            for block in range(n_blocks)
            for position, c in enumerate(cases)
        )
        loads.append(
            Job(
                target=ModelFile(ref=MODEL.ref, path=""),
                models=(ModelFile(ref=_draft(), path=""),),
                prompts={prompt_key(cases[0].prompt): Prompt(key="p", sha256="", workload="code", text="x")},
                slots=slots,
            )
        )
    return Experiment(loads=tuple(loads), environment=ENVIRONMENT)


def measured(slot: Slot) -> Trial:
    """What an honest machine says: as many tokens as were asked for, accepted two at a time with a draft."""
    n_left, rounds, draft = slot.case.n_predict - 1, [], slot.case.arm == "sd"
    while n_left:
        accepted = min(2, n_left - 1) if draft else 0
        proposed = 4 if draft else 0
        rounds.append(
            Round(
                proposed=proposed, accepted=accepted, committed=accepted + 1, rows=1 + proposed,
                draft_ns=400, verify_ns=1_000, rollback_ns=50, sample_ns=10, other_ns=5,
            )
        )  # fmt: skip
        n_left -= accepted + 1
    return trial(
        slot.case, block=slot.block, repeat=slot.repeat, position=slot.position, rounds=tuple(rounds), timed=True,
        tokens=tuple(range(slot.case.n_predict)), decode_ns=sum(one.wall_ns for one in rounds), reason=None,
        draft_prefill_ns=2_000 if draft else None, status=Status.VALID, failed_native_calls=0,
    )  # fmt: skip


def said(ticket: str, block: Block) -> Said:
    return ticket, BlockMeasured(slots=(), trials=tuple(map(measured, block.slots)))


class FakeLab:
    """Each `receive` lets every machine measure one block.

    `disturb` may change the lab before it, and `alter` what a machine says, to nothing or to several things.
    """

    def __init__(
        self,
        cards: dict[str, Card],
        disturb: Callable[[FakeLab], None] = lambda lab: None,
        alter: Callable[[str, BlockMeasured | Ended], Iterable[Said]] = lambda ticket, what: [(ticket, what)],
    ) -> None:
        self.cards, self._disturb, self._alter = dict(cards), disturb, alter
        self.jobs: dict[str, tuple[str, Job, int]] = {}  # ticket -> address, job, blocks measured
        self.submitted: list[tuple[str, Job]] = []
        self.cancelled: list[str] = []
        self.pending: list[Said] = []
        self.posted = ""

    def machines(self) -> dict[str, Card]:
        return dict(self.cards)

    def submit(self, address: str, ticket: str, job: Job, origin: Origin) -> None:
        assert address in self.cards
        assert all(where != address for where, _, _ in self.jobs.values()), "a machine measures one part at a time"
        self.jobs[ticket] = (address, job, 0)
        self.submitted.append((address, job))

    def cancel(self, ticket: str) -> None:
        self.cancelled.append(ticket)
        self.jobs.pop(ticket, None)

    def post(self, name: str, words: str, failures: Sequence[str]) -> None:
        self.posted = words

    def receive(self, timeout_s: float) -> Iterator[Said]:
        self._disturb(self)
        sent, self.pending = self.pending, []
        for ticket, (address, job, n) in list(self.jobs.items()):
            if address not in self.cards:
                continue
            if n == len(job.blocks):
                sent += [said(ticket, block) for block in job.blocks]  # once more
                sent.append((ticket, Ended()))
                continue
            self.jobs[ticket] = (address, job, n + 1)
            sent.append(said(ticket, job.blocks[n]))
        for one in sent:
            for ticket, what in self._alter(*one):
                if isinstance(what, Ended):
                    self.jobs.pop(ticket, None)
                yield ticket, what


class Storm:
    """Machines die and come back at random, some words are lost, some come late."""

    def __init__(self, seed: int, cards: dict[str, Card]) -> None:
        self._rng, self._cards = random.Random(seed), cards
        self.n_deaths = 0

    def __call__(self, lab: FakeLab) -> None:
        for address, own in self._cards.items():
            if address in lab.cards and self._rng.random() < 0.15:
                for ticket, (where, job, n) in lab.jobs.items():
                    late = where == address and n < len(job.blocks) and self._rng.random() < 0.5
                    if late:  # its last word
                        lab.pending.append(said(ticket, job.blocks[n]))
                del lab.cards[address]  # and nothing is heard of what it was at
                self.n_deaths += 1
            elif address not in lab.cards and (self._rng.random() < 0.5 or not lab.cards):
                lab.cards[address] = own

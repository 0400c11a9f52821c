"""Servers side by side in interleaved blocks: what is planned of them, and one trial a request in the store."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import asdict, replace

from mlsd.engine.context import threads_of
from mlsd.errors import InputError
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_environment
from mlsd.measure.parent.blocks import ALL, Experiment, RunSettings, Watcher, machine_lock, next_repeat
from mlsd.measure.parent.race import Race
from mlsd.measure.parent.requests import BenchResult, check_database, conduct, result_of
from mlsd.measure.process import run_info
from mlsd.methods import METHODS
from mlsd.models.library import LocalModel
from mlsd.planning.block_order import order_blocks
from mlsd.planning.job import Job, ModelFile, TrialRole, prompt_key
from mlsd.planning.prompts import Prompt
from mlsd.planning.request import MOST_BLOCKS
from mlsd.records import Case, QualityWarning, Sampling
from mlsd.servers.bench import Arm, ServerBench, Side
from mlsd.servers.request import SERVERS, ServerRequest
from mlsd.store import sessions
from mlsd.store.newest import study_path
from mlsd.store.store import Store
from mlsd.trials.intervals import Stopping
from mlsd.trials.results import SessionPlan


class ServerResult(BenchResult, frozen=True, kw_only=True):
    """The same of servers, and what was found out about them."""

    notes: tuple[str, ...]
    deterministic: bool  # the plain server repeats itself
    base: str = ""  # the target's id at the server that others are compared with, where none of them is plain
    agreement: tuple[str, ...] = ()  # of two such servers: whether they write the same, and why they may not


def measure(
    sides: Sequence[Side],
    wanted: ServerRequest,
    prompts: Sequence[Prompt],
    files: tuple[LocalModel, ...] = (),
    db: Path | None = None,
    watcher: Watcher | None = None,
) -> ServerResult:
    """Measure every side against the first, and store each request as a trial.

    The first one is plain and the others have its target; or they are rivals with models of their own, of which only
    speed and text are compared. `files` are the models of launched servers, the target first.
    Raises: ServerError when the first server cannot even answer once; LockError, StoreError, InputError.
    """
    path = db or study_path(SERVERS)
    with machine_lock(), ExitStack() as stack:
        for side in sides:
            stack.callback(side.stop)
        check_database(path)
        environment = read_environment(run_info(wanted.engine))
        bench = ServerBench(sides, wanted, prompts, files)
        bench.prepare()
        blocks = _blocks(bench)
        cases = {case.id: case for block in blocks for _, case in block}
        bench.arm_of = {case.id: arm for block in blocks for arm, case in block}
        # Calls with the same cases go on with one another, where a process stands for as much in both.
        identity = " ".join((str(sides[0].launched), *sorted(cases)))
        decides = SessionPlan(
            id=f"{SERVERS} {hashlib.sha256(identity.encode()).hexdigest()[:16]}",
            pool="all",
            stopping=Stopping.FIXED if wanted.goal is None else Stopping.SEQUENTIAL,
            process_per_arm=not sides[0].launched,
            base=bench.target(0).id if bench.rivals else "",
            n_threads=threads_of(wanted.engine),
        ).count(cases.values())
        with Store.open(path) as store:
            first = next_repeat(store, environment, cases)
            last = first + (MOST_BLOCKS if wanted.goal else wanted.repeats)
            study: TrialRole = "study"
            planned = [[(case, case.id, study) for _, case in block] for block in blocks]
            slots = order_blocks(dict.fromkeys(range(first, last), planned), wanted.seed, turn=bench.arm_of.__getitem__)
            job = Job(
                target=ModelFile(ref=slots[0].case.target, path=str(files[0].path) if files else ""),
                prompts={prompt_key(case.prompt): bench.prompts[case.prompt.key] for case in cases.values()},
                slots=slots,
            )
            before = sessions.of_cases(store, environment, decides, cases.values())
            earlier = [one for known in before for one in known.trials]
            race = None if wanted.goal is None else Race(wanted.goal, plan=decides, earlier=earlier)
            facts = tuple(model_facts(model.path, ref=model.ref) for model in files)
            record = {"profile": None, "suites": [SERVERS], "servers": [side.spec.name for side in sides]}
            record |= sessions.as_stored(decides)
            plan = Experiment(loads=(job,), environment=environment, facts=facts, record=record)
            outcome, warnings = conduct(plan, store, RunSettings(seed=wanted.seed), watcher, race or ALL, bench.at)
            advice = "See the page on servers in the documentation."
            noted = tuple(QualityWarning(code="server", message=note, advice=advice) for note in bench.notes)
            store.add_warnings(outcome.run_id, noted)
            own, done = sessions.of_run(store, outcome.run_id), (outcome, (*warnings, *noted))
            found = result_of(store, path, done, own, models=files, race=race)
    return ServerResult(
        **asdict(found),
        notes=tuple(bench.notes),
        deterministic=bench.deterministic,
        base=decides.base,
        agreement=tuple(bench.agreement()),
    )


def _blocks(bench: ServerBench) -> list[list[tuple[Arm, Case]]]:
    """A block for each group of prompts that are sent at once: every arm's cases, those of an arm together.

    The last group is topped up from the first prompts. Raises: InputError where there are too few of them.
    """
    blocks, prompts = [], list(bench.prompts.values())
    for n in bench.wanted.parallel:
        if len(prompts) < n:
            raise InputError(
                f"{n} requests at once need {n} different prompts; {len(prompts)} were given.", hint="Add --prompt."
            )
        arms: list[Arm] = [*range(len(bench.sides)), *([None] if bench.wanted.with_engine and n == 1 else [])]
        suite = SERVERS if n == 1 else f"{SERVERS}-parallel-{n}"
        for start in range(0, len(prompts), n):
            group = (prompts * 2)[start : start + n]
            blocks.append([(arm, case) for arm in arms for one in group for case in _cases(bench, arm, one, suite)])
    return blocks


def _cases(bench: ServerBench, arm: Arm, prompt: Prompt, suite: str) -> Iterator[Case]:
    wanted = bench.wanted
    plain = Case(
        suite=suite,
        target=bench.target(arm),
        prompt=prompt.ref,
        n_predict=wanted.n_predict,
        sampling=Sampling() if wanted.sampling.greedy else wanted.sampling,
        engine=wanted.engine,
        ignore_eog=wanted.ignore_eog,
    )
    if arm is None:
        drafting = [side for side in bench.sides[1:] if side.spec.name in METHODS]
        yield from (plain, *(replace(plain, drafter=side.spec, gamma=side.gamma) for side in drafting))
        return
    side, words = bench.sides[arm], f"{bench.server(arm).words} {wanted.flags}".strip()
    yield replace(plain, drafter=side.spec, gamma=side.gamma, server=words)

"""Two builds of llama.cpp, or two settings of one, side by side: block by block into a study database.

A block holds every side once, in random order; a side's turn is one worker process of its own, which runs every arm of
every prompt and then times single passes. A process keeps its place in memory for life, which alone moves times by a
per cent or more (Mytkowicz et al. 2009, "Producing wrong data without doing anything obviously wrong"): with a process
for each turn that is noise, which intervals see, and no difference between the builds. Decides nothing: what runs next
is asked of the caller, after every block.
"""

import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from mlsd.engine.losslessness import of_other_build
from mlsd.errors import InputError, MlsdError, WorkerError
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_environment
from mlsd.measure.bench import Bench, Report
from mlsd.measure.heat import cool_down_of
from mlsd.measure.messages import CalibrateJob, Passes
from mlsd.measure.parent.blocks import Experiment, OpenRun, Watcher, begun, machine_lock, next_repeat
from mlsd.measure.parent.builds import Build, check_build, find_build
from mlsd.measure.parent.calibration import run_calibration
from mlsd.measure.parent.memory import fit_here
from mlsd.measure.parent.requests import check_database, conclude
from mlsd.measure.process import call
from mlsd.measure.worker.build_check import read_logits
from mlsd.planning.job import Job, prompt_key
from mlsd.planning.plan import plan_bench
from mlsd.planning.prompts import load_prompt
from mlsd.planning.request import BenchRequest
from mlsd.planning.time_estimate import load_preparation_s, preparation_line
from mlsd.records import Case, Environment, QualityWarning, Record
from mlsd.store.newest import study_path
from mlsd.store.rows import COMPARE, CONTROL, OUTPUT, TrialFilter
from mlsd.store.store import Store
from mlsd.trials.intervals import Stopping
from mlsd.trials.stages import PREPARATION, StageTime, summed, wall_ns
from mlsd.units import NS_PER_S

_CALLED = {"0": "A", "1": "B", CONTROL: "A again"}  # sides as people read of them
_DEPTH = 128
_ROWS = (1, 2, 3, 5, 9, 17)
_ROWS_WITHOUT_DRAFTS = 9


class CompareRequest(Record, frozen=True, kw_only=True):
    """Which builds to measure, and with what; `bench.repeats` is the most blocks."""

    builds: tuple[str, str]  # A and B
    bench: BenchRequest
    other: BenchRequest | None = None  # of B, where it has other settings or another model
    rows: tuple[int, ...] | None = None  # k of T(k); None: as wide as the arms' passes are
    control: bool = True
    stopping: Stopping = Stopping.FIXED  # sequential: `next_block` may end it by what was measured
    budget_s: float | None = None  # no block begins after it


class Compared(Record, frozen=True, kw_only=True):
    """Where a session lies, and how it went."""

    database: str
    session: str
    n_blocks: int
    interrupted: bool
    warnings: tuple[QualityWarning, ...]
    stages: tuple[StageTime, ...] = ()  # where the time of its workers went


@dataclass
class _Side:
    """One side of a session: a build with its own job and its own run in the store."""

    role: str  # its place among the builds, or `control`
    build: Build
    request: BenchRequest
    job: Job
    environment: Environment
    run: OpenRun = field(init=False)
    times_passes: bool = True

    def start(self, job: Job, report: Report) -> Bench:
        """A bench in a process of its own.

        Reading a prompt is one of the measures of a build, so plain decoding's is timed in every block.
        """
        timed_before = tuple(case_id for case_id in job.timed_prefills if job.cases[case_id].arm != "ar")
        job = msgspec.structs.replace(job, timed_prefills=timed_before)
        return Bench(job, report, variables=self.build.variables())


NextSides = Callable[[Store, str, int], Sequence[str] | None]


def compare(
    request: CompareRequest, next_block: NextSides, db: Path | None = None, watcher: Watcher | None = None
) -> Compared:
    """Measure the builds in blocks; `next_block` gets (store, session, blocks so far) and names the next; None ends.

    Raises, before anything is measured: InputError for an unknown build, for builds that are the same, and what
    `plan_bench` raises; NativeError, ModelFileError, WorkerError for a build that does not fit or does not know a
    model; LockError, StoreError.
    """
    path, watcher, session = db or study_path(COMPARE), watcher or Watcher(), secrets.token_hex(4)
    check_database(path)
    builds = _builds(request, watcher)
    with machine_lock():
        sides = _sides(request, builds, watcher)
        with Store.open(path) as store:
            n_blocks, interrupted = 0, False
            first = max(next_repeat(store, side.environment, side.job.cases) for side in sides.values())
            for side in sides.values():
                (load,) = plan_bench(side.request, first=first, side=side.role.removeprefix("0")).loads
                side.job = msgspec.structs.replace(side.job, slots=load.slots)
            with suppress(KeyboardInterrupt), ExitStack() as runs:
                interrupted = True  # until the last block ends; what ends it early leaves its runs `interrupted`
                for side in sides.values():
                    of_side = {"role": side.role, "build": side.build.label, "fingerprint": side.build.fingerprint}
                    plan = Experiment(
                        loads=(side.job,),
                        environment=side.environment,
                        facts=tuple(model_facts(model.path, ref=model.ref) for model in side.request.files),
                        record={"command": COMPARE, "session": session, "looks": request.stopping, **of_side},
                        keep_failed=True,  # earlier sessions stay as they are
                    )
                    side.run = runs.enter_context(begun(plan, store, watcher))
                watcher.begin(sum(len(side.job.slots) for side in sides.values()), 0)
                longest_s = max(load_preparation_s(side.job) or 0.0 for side in sides.values()) or None
                doing = "Each turn of a side loads its models anew"
                watcher.ready(preparation_line(doing, longest_s, "which no budget counts"))
                began_s = time.monotonic()  # a budget is of measuring: builds are checked, and nothing has run
                while n_blocks < request.bench.repeats:
                    roles = next_block(store, session, n_blocks)
                    prepared_s = wall_ns(_stages(sides.values()), PREPARATION) / NS_PER_S
                    spent_s = time.monotonic() - began_s - prepared_s
                    if roles is None or (request.budget_s is not None and n_blocks and spent_s > request.budget_s):
                        break
                    _block([sides[role] for role in roles], first + n_blocks, request, store, watcher)
                    n_blocks += 1
                _judge_outputs(sides, store)
                interrupted = False
            measured = [side for side in sides.values() if side.run.n_run]
            warnings = [conclude(store, s.run.run_id, s.environment) for s in measured]
    return Compared(
        database=str(path),
        session=session,
        n_blocks=n_blocks,
        interrupted=interrupted,
        warnings=tuple(dict.fromkeys(w for of_side in warnings for w in of_side)),
        stages=_stages(measured),
    )


def _stages(sides: Iterable[_Side]) -> tuple[StageTime, ...]:
    """Where the time of their workers went."""
    return summed(time for side in sides for time in side.run.outcome().stages)


# --- before anything runs -----------------------------------------------------------------------------------------


def _builds(request: CompareRequest, watcher: Watcher) -> tuple[Build, Build]:
    a, b = map(find_build, request.builds)
    if a.fingerprint == b.fingerprint and request.other is None:
        if a.name != b.name:
            raise InputError(
                f"{a.name} and {b.name} are the same build: their libraries are the same files ({a.fingerprint}).",
                hint=f"To see this machine's noise on purpose: mlsd compare {a.name} {a.name} TARGET.",
            )
        watcher.tell(f"A and B are the same build ({a.fingerprint}): what differs is this machine's noise.")
    return a, b


def _sides(request: CompareRequest, builds: Sequence[Build], watcher: Watcher) -> dict[str, _Side]:
    """Every side, its build checked in a worker of its own."""
    sides: dict[str, _Side] = {}
    for number, build in enumerate(builds):
        bench = request.other if number and request.other is not None else request.bench
        _, (job,) = fit_here(plan_bench(bench).loads)
        try:
            fits = check_build(build, job)
        except MlsdError as error:
            error.message = f"Build {build.name} cannot be measured. {error.message}"
            if isinstance(error, WorkerError):
                error.hint = "The build crashes: rebuild it for this processor."
            raise
        environment = read_environment(fits.backend)
        job = msgspec.structs.replace(job, cool_down_s=cool_down_of(None, environment))
        sides[str(number)] = _Side(str(number), build, bench, job, environment)
        where = f"{build.name}: llama-cpp-python {fits.backend.binding_version}, {fits.backend.build}"
        watcher.tell(f"{_CALLED[str(number)]}: {where}, {fits.backend.backend}; {fits.backend.system_info}")
    if request.control:
        sides[CONTROL] = _Side(CONTROL, builds[0], sides["0"].request, sides["0"].job, sides["0"].environment)
    return sides


# --- blocks -------------------------------------------------------------------------------------------------------


def _block(sides: list[_Side], repeat: int, request: CompareRequest, store: Store, watcher: Watcher) -> None:
    """One turn of every side in random order, stored as this repeat."""
    random.Random(f"{request.bench.seed} {repeat}").shuffle(sides)
    for side in sides:
        watcher.turn(_CALLED[side.role])
        blocks = [block for block in side.job.blocks if block.repeat == repeat]
        side.run.measure(side.job, blocks, side.start)
        if side.times_passes:
            _passes(side, repeat, request, store)


def _passes(side: _Side, repeat: int, request: CompareRequest, store: Store) -> None:
    """Time each width once; where passes cannot be timed, warn and go on without them."""
    widest = max((slot.case.gamma + 1 for slot in side.job.slots), default=1)
    upto = widest if widest > 1 else _ROWS_WITHOUT_DRAFTS
    widths = {*(k for k in _ROWS if k <= upto), *(slot.case.gamma + 1 for slot in side.job.slots)}
    job = CalibrateJob(
        target=side.job.target,
        engine=side.request.engine,
        text=load_prompt("length-1024").text,
        rows=request.rows or tuple(sorted(widths)),
        depths=(_DEPTH,),
        budget_s=1e-3,  # one repeat
        least_repeats=1,
    )
    try:
        for event in run_calibration(job, variables=side.build.variables()):
            if isinstance(event, Passes):
                points = [msgspec.structs.replace(point, repeat=repeat) for point in event.points]
                store.add_figures(side.run.run_id, points)
    except MlsdError as error:
        side.times_passes = False
        warning = QualityWarning(code="passes_not_timed", message=error.message, advice=error.hint)
        store.add_warnings(side.run.run_id, [warning])


# --- what the builds wrote ----------------------------------------------------------------------------------------


def _judge_outputs(sides: dict[str, _Side], store: Store) -> None:
    """Where the plain output of a side is not the first side's: a near tie, or another model; stored as a warning."""

    def output(side: _Side, case: Case) -> tuple[int, ...]:
        rows = store.trials(TrialFilter(run_id=side.run.run_id, case_id=case.id, failed=False), rounds=False)
        return next((stored.trial.tokens for stored in rows), ())

    base = sides["0"]
    for side in (side for role, side in sides.items() if role not in ("0", CONTROL) and side.run.n_run):
        theirs = {slot.case.prompt: slot.case for slot in side.job.slots if slot.case.arm == "ar"}
        for case in base.job.cases.values():
            if case.arm == "ar" and case.sampling.greedy and case.prompt in theirs:
                ours, other = output(base, case), output(side, theirs[case.prompt])
                if ours and other and ours != other:
                    store.add_warnings(side.run.run_id, [_output_warning(base, side, case, ours, other)])


def _output_warning(
    base: _Side, side: _Side, case: Case, tokens: tuple[int, ...], other: tuple[int, ...]
) -> QualityWarning:
    """What both builds say of what the other side wrote."""

    def job(of: _Side) -> Job:
        slots = [s for s in of.job.slots if s.case.arm == "ar" and s.case.prompt == case.prompt][:1]
        prompts = {prompt_key(case.prompt): of.job.prompts[prompt_key(case.prompt)]}
        return Job(target=of.job.target, prompts=prompts, slots=tuple(slots))

    doing = "reading logits"
    names = f"{case.prompt.key}: the plain output of {side.build.label} is not that of {base.build.label}"
    try:
        ours = call(partial(read_logits, job(base), other), base.build.variables(), doing=doing)
        theirs = call(partial(read_logits, job(side), other, ours.ids), side.build.variables(), doing=doing)
        rows = [np.asarray(read.logits, dtype=np.float32) for read in (ours, theirs)]
        judged = of_other_build(other, tokens, rows[0], rows[1])
    except MlsdError as error:
        return QualityWarning(
            code=f"{OUTPUT}diverged",
            message=f"{names}, and the two cannot be read side by side: {error.message}",
            advice="They are not the same model.",
            case_id=case.id,
        )
    near = judged.verdict == "near_tie"
    return QualityWarning(
        code=f"{OUTPUT}{judged.verdict}",
        message=f"{names} from token {judged.first_difference} on: {'a near tie' if near else 'a changed model'}. "
        f"{judged.n_different} of {judged.n_compared} tokens are not the other's choice, by {judged.worst_gap:.3g} "
        f"logits at most, rounding explains {judged.tolerance:.3g}; all likely logits are {judged.live_distance:.3g} "
        f"apart on average, rounding explains {judged.live_limit:.3g}.",
        advice="Rounding chose; times compare." if near else "Speeds of two different models do not compare.",
        case_id=case.id,
    )

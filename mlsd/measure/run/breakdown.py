"""Where the time of a pass and of a round goes: profiled passes, and the rounds of one plain run of a method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mlsd.errors import WorkerError
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_environment
from mlsd.measure.messages import BlockMeasured, BreakdownJob
from mlsd.measure.process import call, run_info, run_job
from mlsd.measure.run.calibration import check_rows
from mlsd.measure.run.runner import machine_lock, recorded_run
from mlsd.planning.job import Job
from mlsd.planning.plan import plan_bench
from mlsd.planning.prompts import load_prompt
from mlsd.planning.request import BenchRequest
from mlsd.records import DRAFT_MODEL, BackendInfo, Case, DrafterSpec, ModelFacts, Record, Status, Trial
from mlsd.store.newest import newest_or_new
from mlsd.store.pass_shares import PassShares
from mlsd.store.store import Store

_GAMMA = 4  # where neither the caller nor a preset says


class Breakdown(Record, frozen=True, kw_only=True):
    """What was profiled, and the rounds of one plain run."""

    job: BreakdownJob
    database: str  # where the shares are
    shares: tuple[PassShares, ...]
    case: Case | None  # of the rounds; None: no drafting
    trials: tuple[Trial, ...]
    backend: str | None = None  # that passes were profiled on

    @property
    def doubt(self) -> str | None:
        """Why shares are in doubt; None: they are not."""
        if not any(shares.in_doubt for shares in self.shares):
            return None
        if self.backend == "Metal":
            return (
                "Metal runs the parts of a pass ahead and side by side; a profiled pass waits for the GPU behind each "
                "part and forbids their reordering, so its parts do not add up to T."
            )
        return (
            "Profiling or other programs changed these passes too much: their parts differ from T by a quarter, or "
            "the profiled pass took twice as long as T, as with tiny models."
        )

    def network(self, shares: PassShares) -> str:
        """Whose pass it was."""
        if shares.drafting_key is not None:
            return f"draft of {self.job.drafter.name}"
        draft, target = self.job.draft, self.job.target
        return (draft if draft is not None and shares.model_key == draft.ref.key else target).ref.id


def breakdown(
    request: BenchRequest, *, rows: Sequence[int], depth: int, repeats: int, db: Path | None = None
) -> Breakdown:
    """Profile passes of what a bench of one method measures, into a run of its own, then run the method once.

    Passes have `rows` positions after `depth` others, in `repeats` turns of each kind; `db` is by default the newest
    study database. Without a gamma the method's preset counts, else 4.

    Raises: InputError and what the method refuses before anything is measured, LockError, StoreError, EngineError,
    WorkerError.
    """
    check_rows(rows)
    (load,) = plan_bench(request).loads
    arms = [case for case in load.cases.values() if case.arm == "sd"]
    # Where a draft is given, methods without one are asked for as well: those come first.
    case = min(arms, key=lambda arm: (arm.drafter.name == DRAFT_MODEL, abs(arm.gamma - _GAMMA)), default=None)
    job = BreakdownJob(
        target=load.target,
        draft=load.models[0] if load.models else None,
        drafter=DrafterSpec() if case is None else case.drafter,
        engine=request.engine,
        text=load_prompt("length-1024").text,
        rows=tuple(dict.fromkeys(rows)),
        depth=depth,
        repeats=repeats,
    )
    with machine_lock():
        path, backend = db or newest_or_new(), run_info(job.engine)
        facts = [model_facts(model.path, ref=model.ref) for model in request.files]
        shares = profile_and_store(job, path, facts, backend)
        trials = () if case is None else _run(load, case)
    return Breakdown(job=job, database=str(path), shares=shares, case=case, trials=trials, backend=backend.backend)


def profile_and_store(
    job: BreakdownJob, db: Path, models: Sequence[ModelFacts], backend: BackendInfo
) -> tuple[PassShares, ...]:
    """Profile passes in a worker into a run of its own; the caller holds the machine's lock."""
    environment, plan = read_environment(backend), job.plan("breakdown")
    with Store.open(db) as store, recorded_run(store, environment, plan) as run_id:
        store.add_models(models)
        shares = call("breakdown:break_down", job, tuple[PassShares, ...], doing="profiling passes")
        store.add_figures(run_id, shares)
    return shares


def _run(load: Job, case: Case) -> tuple[Trial, ...]:
    """The trials of one method of a load."""
    slots = tuple(slot for slot in load.slots if slot.repeat == 0 and (slot.case == case or slot.case.arm == "ar"))
    job = msgspec.structs.replace(load, slots=slots, strict=True)
    blocks = [event.trials for event in run_job(job) if isinstance(event, BlockMeasured)]
    trials = tuple(trial for block in blocks for trial in block if trial.arm == "sd")
    if not trials or trials[0].status is Status.FAILED:
        raise WorkerError(f"The rounds could not be run: {trials[0].reason if trials else 'no trial came back'}")
    return trials

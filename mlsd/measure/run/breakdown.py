"""Where the time of a pass and of a round goes: profiled passes, and the rounds of one plain run of a method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mlsd.drafters import check_target, preset_gamma, resolve_spec
from mlsd.drafters.options import parse_drafter
from mlsd.errors import WorkerError
from mlsd.hardware import read_environment
from mlsd.measure.messages import BreakdownJob, Done, SharesFound
from mlsd.measure.process import ask, run_info, run_job
from mlsd.measure.run.pairs import PairRequest, find_pair, stored_plan
from mlsd.measure.run.runner import machine_lock, recorded_run
from mlsd.measure.store.newest import newest_or_new
from mlsd.measure.store.pass_shares import PassShares
from mlsd.measure.store.rows import model_key
from mlsd.measure.store.store import Store
from mlsd.planning.prepare import BenchRequest, Prepared, prepare_bench
from mlsd.planning.prompts import load_prompt
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, Case, DrafterSpec, ModelFacts, Record, Trial

_GAMMA = 4  # where neither the caller nor a preset says


class BreakdownRequest(PairRequest, frozen=True, kw_only=True):
    """What to profile."""

    drafter: str | None = None  # a method; None: the draft model, or no drafting
    gamma: int | None = None
    rows: tuple[int, ...] = (1, 5, 9)
    depth: int = 128  # positions before a pass
    repeats: int = 5
    prompt: str = "code"  # of the rounds
    n_predict: int = 64  # of the rounds


class Breakdown(Record, frozen=True, kw_only=True):
    """What was profiled, and the rounds of one plain run."""

    job: BreakdownJob
    database: str  # where the shares are
    shares: tuple[PassShares, ...]
    case: Case | None  # of the rounds; None: no drafting
    trials: tuple[Trial, ...]

    def network(self, shares: PassShares) -> str:
        """Whose pass it was."""
        if shares.drafting_key is not None:
            return f"draft of {self.job.drafter.name}"
        draft = None if self.job.draft is None else self.job.draft.ref
        is_draft = draft is not None and shares.model_key == model_key(draft.sha256, draft.id)
        return draft.id if draft is not None and is_draft else self.job.target.ref.id


def breakdown(request: BreakdownRequest, db: Path | None = None) -> Breakdown:
    """Profile passes into a run of its own in `db`, by default the newest study database, then run the method once.

    Raises: InputError and what the method refuses before anything is measured, LockError, StoreError, EngineError,
    WorkerError.
    """
    job, facts, rounds = _requests(request)
    with machine_lock():
        path = db or newest_or_new()
        shares = profile_and_store(job, path, facts)
        case, trials = (None, ()) if rounds is None else _run(rounds)
    return Breakdown(job=job, database=str(path), shares=shares, case=case, trials=trials)


def profile_and_store(job: BreakdownJob, db: Path, models: Sequence[ModelFacts] = ()) -> tuple[PassShares, ...]:
    """Profile passes in a worker into a run of its own; the caller holds the machine's lock."""
    environment, plan = read_environment(run_info(job.engine)), stored_plan("breakdown", job)
    with Store.open(db) as store, recorded_run(store, environment, plan) as run_id:
        store.add_models(models)
        shares = ask(job, SharesFound).shares
        store.add_shares(run_id, shares)
    return shares


def _requests(request: BreakdownRequest) -> tuple[BreakdownJob, list[ModelFacts], Prepared | None]:
    target, draft, facts = find_pair(request)
    text = request.drafter or (DRAFT_MODEL if draft else NO_DRAFTER)
    spec, gamma = DrafterSpec(), request.gamma
    if text != NO_DRAFTER:
        asked = parse_drafter(text, None if draft is None else draft.ref)
        spec, gamma = resolve_spec(asked), gamma or preset_gamma(asked) or _GAMMA
        check_target(spec, Path(target.path), None if draft is None else Path(draft.path))
    job = BreakdownJob(
        target=target,
        draft=draft,
        drafter=spec,
        engine=request.engine,
        text=load_prompt("length-1024").text,
        rows=tuple(dict.fromkeys(request.rows)),
        depth=request.depth,
        repeats=request.repeats,
    )
    if text == NO_DRAFTER:
        return job, facts, None
    rounds = BenchRequest(
        target=request.target,
        drafts=(request.draft,) if request.draft else (),
        drafters=(msgspec.structs.replace(spec, draft=None),),
        gammas=(gamma or _GAMMA,),
        prompts=(request.prompt,),
        n_predict=request.n_predict,
        repeats=1,
        engine=request.engine,
    )
    return job, facts, prepare_bench(rounds)  # refuses what cannot run before anything is profiled


def _run(plan: Prepared) -> tuple[Case, tuple[Trial, ...]]:
    """The case and the trials of the method."""
    (load,) = plan.plan.loads
    job = msgspec.structs.replace(load, strict=True)
    trials = tuple(event.trial for event in run_job(job) if isinstance(event, Done) and event.trial.arm == "sd")
    if not trials or trials[0].status == "failed":
        raise WorkerError(f"The rounds could not be run: {trials[0].error if trials else 'no trial came back'}")
    return plan.plan.cases()[trials[0].case_id], trials

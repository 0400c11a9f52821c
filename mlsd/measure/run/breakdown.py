"""Running a breakdown, into a study database where one is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mlsd.hardware import read_environment
from mlsd.measure.messages import BreakdownJob
from mlsd.measure.process import run_breakdown, run_info
from mlsd.measure.store.pass_shares import PassShares
from mlsd.measure.store.study import Store
from mlsd.records import ModelFacts


def profile_and_store(job: BreakdownJob, db: Path | None, models: Sequence[ModelFacts] = ()) -> tuple[PassShares, ...]:
    """Profile passes in a worker; with `db`, a run of its own holds them beside the machine and the models' facts.

    The caller holds the machine's lock. Raises: StoreError before anything is profiled, EngineError, WorkerError.
    """
    if db is None:
        return run_breakdown(job).shares
    plan = {"command": "breakdown", **msgspec.to_builtins(msgspec.structs.replace(job, text=""))}
    with Store.open(db) as store:
        run_id = store.begin_run(read_environment(run_info(job.engine)), plan, seed=0)
        store.add_models(models)
        try:
            shares = run_breakdown(job).shares
            store.add_shares(run_id, shares)
        except BaseException:
            store.end_run(run_id, "interrupted")
            raise
        store.end_run(run_id)
    return shares

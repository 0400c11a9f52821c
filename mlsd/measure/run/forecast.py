"""What a plan needs of this machine, and how long it takes, from earlier results before anything runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

import msgspec

from mlsd.hardware import read_environment
from mlsd.hardware.budget import MemoryBudget, mac_budget, memory_budget
from mlsd.measure.run.memory import LoadMemory, ask_memory, judge_loads, size_models
from mlsd.measure.store.newest import study_path
from mlsd.measure.store.store import Store
from mlsd.models.hub import free_bytes
from mlsd.models.manifest import Manifest
from mlsd.planning.estimate import (
    Load,
    TimeEstimate,
    TokS,
    estimate_time,
    first_known,
    plan_loads,
    rates_from_bandwidth,
    rates_from_calibration,
    rates_from_results,
)
from mlsd.planning.prepare import Prepared, StudyRequest, prepare_study
from mlsd.records import Environment, Record
from mlsd.units import GIB


class Forecast(Record, frozen=True, kw_only=True):
    """What a plan needs on this machine."""

    loads: tuple[Load, ...]
    memory: tuple[LoadMemory, ...]  # one for each load
    budget: MemoryBudget | None
    time: TimeEstimate
    download_bytes: int | None  # models not on this machine; None where a size is not even estimated
    free_disk_bytes: int
    missing: tuple[str, ...]  # models not on this machine, or only with another program
    sizes: dict[str, int | None]  # bytes of every model
    elsewhere: dict[str, str]  # of those, what another program keeps: model -> path


def plan_study(request: StudyRequest, db: Path | None = None, *, here: bool = False) -> tuple[Prepared, Forecast]:
    """What a run of these suites would measure and need; rates come from `db`, or where the run would write.

    A profile for a Mac is judged for such a Mac, unless it is to run `here`.

    Raises: what `prepare_study` raises, StoreError for a file that is no study database.
    """
    prepared = prepare_study(request)
    assert prepared.profile is not None
    earlier = db or study_path(prepared.profile.name)
    environment = read_environment()
    of_results = earlier if earlier.exists() else None
    tok_s = _tok_s(prepared.library.manifest, environment, of_results)
    return prepared, forecast(prepared, environment, tok_s, here=here)


def forecast(prepared: Prepared, environment: Environment, tok_s: TokS, *, here: bool) -> Forecast:
    """Weigh the loads of a plan against the machine, or against the Mac that its profile is for."""
    plan, library = prepared.plan, prepared.library
    models = size_models(plan.models(), library, prepared.models)
    sizes = {model.id: model.n_bytes for model in models.values()}
    asked = ask_memory(plan.loads, models, prepared.engine)
    environment = msgspec.structs.replace(environment, backend=asked.backend.backend)
    budget = memory_budget(environment, asked.backend.memory_bytes)
    profile = prepared.profile
    if not here and profile is not None and profile.memory_gib is not None and not environment.os.startswith("macOS"):
        budget = mac_budget(profile.memory_gib * GIB)
    found = {id_: library.elsewhere(library.manifest.find(id_)) for id_ in prepared.missing}
    elsewhere = {id_: str(paths[0]) for id_, paths in found.items() if paths}
    to_get = [sizes[model] for model in prepared.missing if model not in elsewhere]
    return Forecast(
        loads=plan_loads(plan, sizes, tok_s),
        memory=judge_loads(plan.loads, models, asked, budget),
        budget=budget,
        time=estimate_time(plan.loads, tok_s),
        download_bytes=None if None in to_get else sum(size for size in to_get if size is not None),
        free_disk_bytes=free_bytes(library.hub.cache_dir),
        missing=prepared.missing,
        sizes=sizes,
        elsewhere=elsewhere,
    )


def _tok_s(manifest: Manifest, environment: Environment, db: Path | None) -> TokS:
    """Rates from the database's results and calibration on this machine, then from bytes over bandwidth."""
    active = {}
    for entry in manifest:
        n_bytes, total, used = entry.n_bytes, entry.parameters, entry.parameters_active
        active[entry.id] = None if n_bytes is None or not total or not used else round(n_bytes * used / total)
    by_bytes = rates_from_bandwidth(active, environment.peak_bandwidth_gb_s)
    if db is None:
        return by_bytes
    with Store.open(db, create=False, read_only=True) as store:
        own = {run.id for run in store.runs() if run.environment.host == environment.host}
        columns, rows = store.summary()
        trials = [row for row in (dict(zip(columns, r, strict=True)) for r in rows) if row["run_id"] in own]
        passes: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for run_id, point in store.calibration():
            if run_id in own:
                passes[point.model_key, point.kind, point.rows].append(point.span_ns)
        results = rates_from_results(trials, store.cases())
    calibrated = rates_from_calibration({key: statistics.median(ns) for key, ns in passes.items()})
    return first_known(results, calibrated, by_bytes)

"""What a plan needs of this machine, and how long it takes, from earlier results before anything runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

from mlsd.hardware import read_environment
from mlsd.hardware.budget import memory_budget
from mlsd.measure.run.doctor import Fit, weight_bytes
from mlsd.measure.store.newest import study_path
from mlsd.measure.store.study import Store
from mlsd.models.hub import free_bytes
from mlsd.models.library import Library
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


class Forecast(Record, frozen=True, kw_only=True):
    """What a plan needs on this machine."""

    loads: tuple[Load, ...]
    fits: tuple[Fit, ...]  # one for each load
    time: TimeEstimate
    peak_weight_bytes: int | None  # of the largest load; None where a size is not known
    safe_bytes: int | None  # what this machine can hold with room for contexts
    most_bytes: int | None
    download_bytes: int | None  # models not on this machine; None where a size is not known
    free_disk_bytes: int
    missing: tuple[str, ...]  # models not on this machine


def plan_study(request: StudyRequest, db: Path | None = None) -> tuple[Prepared, Forecast]:
    """What a run of these suites would measure and need; rates come from `db`, or where the run would write.

    Raises: what `prepare_study` raises, StoreError for a file that is no study database.
    """
    library = Library()
    prepared = prepare_study(request, library)
    assert prepared.profile is not None
    earlier = db or study_path(prepared.profile.name)
    environment = read_environment()
    tok_s = _tok_s(library.manifest, environment, earlier if earlier.exists() else None)
    return prepared, _forecast(prepared, library, environment, tok_s)


def _forecast(prepared: Prepared, library: Library, environment: Environment, tok_s: TokS) -> Forecast:
    """Weigh the loads of a plan against the machine."""
    plan = prepared.plan
    sizes = {model: weight_bytes(library.manifest.find(model), library) for model in plan.models()}
    loads = plan_loads(plan, sizes, tok_s)
    weights = [load.weight_bytes for load in loads]
    budget = memory_budget(environment)
    safe, most = (budget.safe_bytes, budget.most_bytes) if budget else (None, None)
    to_get = [sizes[model] for model in prepared.missing]
    return Forecast(
        loads=loads,
        fits=tuple(_fit(load.weight_bytes, safe, most) for load in loads),
        time=estimate_time(plan.groups, tok_s),
        peak_weight_bytes=None if None in weights else max((w for w in weights if w is not None), default=None),
        safe_bytes=safe,
        most_bytes=most,
        download_bytes=None if None in to_get else sum(size for size in to_get if size is not None),
        free_disk_bytes=free_bytes(library.hub.cache_dir),
        missing=prepared.missing,
    )


def _fit(weights: int | None, safe: int | None, most: int | None) -> Fit:
    if weights is None or safe is None or most is None:
        return "unknown"
    return "fits" if weights <= safe else "tight" if weights <= most else "does not fit"


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

"""The public library: what notebooks and scripts may use, each function one answer. `import mlsd` offers it by name.

Models are GGUF paths or ids that ``mlsd models list`` shows; where no database is named, the newest study database
under results/ is read. Everything raises from the tree in `mlsd.errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlsd.analysis.advise.ask import advise as advise
from mlsd.analysis.audit import audit as rules
from mlsd.analysis.audit import published_tables
from mlsd.analysis.audit.rows import Audit
from mlsd.analysis.audit.tables import table_contexts
from mlsd.analysis.audit.trials import database_contexts
from mlsd.analysis.study.study import Study, read_study
from mlsd.measure.run import calibration, runs
from mlsd.measure.run.forecast import Forecast, plan_study
from mlsd.measure.run.runner import RunSettings
from mlsd.measure.run.tune import TuneResult, tune_request
from mlsd.measure.run.tune import tune as search
from mlsd.planning.plan import Plan
from mlsd.planning.request import Overrides, StudyRequest, bench_request, study_request
from mlsd.report import write
from mlsd.store.database import is_study
from mlsd.store.newest import newest_study
from mlsd.store.store import Store

FilePath = str | Path


def open_study(db: FilePath | None = None, machine: str | None = None, settings: str | None = None) -> Study:
    """The trials of a database that may be compared; `machine` and `settings` choose one by the start of its key."""
    with Store.open(_path(db) or newest_study(), create=False, read_only=True) as store:
        return read_study(store, machine, settings)


def plan(*suites: str, profile: str | None = None, db: FilePath | None = None, **changes: Any) -> tuple[Plan, Forecast]:
    """What suites would measure, and what that takes; `changes` are fields of `Overrides` (gammas, prompts, ...)."""
    prepared, forecast = plan_study(_study_request(suites, profile, changes), _path(db))
    return prepared.plan, forecast


def run(
    *suites: str, profile: str | None = None, db: FilePath | None = None, fresh: bool = False, **changes: Any
) -> runs.StudyResult:
    """Measure suites into `db` (by default results/PROFILE.sqlite), or go on. `changes` as for `plan`."""
    request = _study_request(suites, profile, changes)
    return runs.run_study(request, _path(db), settings=RunSettings(fresh=fresh, seed=request.overrides.seed))


def _study_request(suites: Sequence[str], profile: str | None, changes: dict[str, Any]) -> StudyRequest:
    return study_request(suites, profile=profile, overrides=Overrides(**changes))


def bench(target: FilePath, *, db: FilePath | None = None, fresh: bool = False, **asked: Any) -> runs.BenchResult:
    """Measure methods beside plain decoding; `asked` are what `bench_request` takes, `db` as for `mlsd bench`."""
    return runs.bench(bench_request(str(target), **asked), _path(db), fresh=fresh)


def tune(
    target: FilePath,
    drafter: str,
    *,
    trials: int = 20,
    budget_s: float | None = None,
    db: FilePath | None = None,
    **asked: Any,
) -> TuneResult:
    """Search for the fastest gamma and options of a method, or go on; `asked` are what `bench_request` takes."""
    return search(tune_request(str(target), drafter, trials=trials, budget_s=budget_s, **asked), _path(db))


def calibrate(
    model: FilePath, draft: FilePath | None = None, *, db: FilePath | None = None, **asked: Any
) -> calibration.CalibrationResult:
    """Time passes over k tokens for many k, and store them; `asked` are what `mlsd calibrate` takes by those names."""
    return calibration.calibrate(str(model), None if draft is None else str(draft), _path(db), **asked)


def audit(source: FilePath) -> Audit:
    """Whether the numbers of a table can be true: of a file, a study database, or a published study by name."""
    if is_study(Path(source)):
        with Store.open(Path(source), read_only=True) as store:
            return rules.audit(str(source), *database_contexts(store))
    if str(source) in published_tables.names():
        published = published_tables.load(str(source))
        return rules.audit(published.citation, *published_tables.contexts(published))
    return rules.audit(str(source), *table_contexts(Path(source)))


def write_report(found: Study, folder: FilePath = "report") -> write.Written:
    """Write report.html (one self-contained file), report.md and the figures of a study into a folder."""
    return write.write_report(found, Path(folder))


def _path(place: FilePath | None) -> Path | None:
    return None if place is None else Path(place)

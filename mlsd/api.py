"""The public library: what notebooks and scripts may use, each function one answer. `import mlsd` offers it by name.

Functions and what they take are called as commands and options are (`dry_run`: `mlsd run --dry-run`), in the plural
where several may be given. Models are GGUF paths or ids of ``mlsd models list``. Errors are those of `mlsd.errors`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlsd.planning.options import BenchOptions, CalibrateOptions, RunOptions, SearchOptions, called_by
from mlsd.servers.request import ServerRequest

if TYPE_CHECKING:
    from mlsd.analysis.study.study import Study
    from mlsd.audits.rows import Audit
    from mlsd.measure.parent.calibration import CalibrationResult
    from mlsd.measure.parent.forecast import Forecast
    from mlsd.measure.parent.requests import BenchResult, StudyResult
    from mlsd.measure.parent.tune import TuneResult
    from mlsd.planning.plan import Plan
    from mlsd.report.page import Written
    from mlsd.servers.measure import ServerResult


@called_by(BenchOptions)
def bench(asked: BenchOptions) -> BenchResult:
    """Measure methods (None: look-ups and drafts that fit) beside plain decoding in blocks, or go on with them."""
    from mlsd.measure.parent import requests
    from mlsd.planning.request import resolve_bench

    return requests.bench(resolve_bench(asked), _path(asked.db), fresh=asked.fresh)


@called_by(SearchOptions)
def search(asked: SearchOptions) -> TuneResult:
    """Search the fastest gamma and options of a drafter in so many settings, "off" among the answers, or go on."""
    from mlsd.measure.parent.tune import tune

    return tune(asked)


@called_by(RunOptions)
def run(asked: RunOptions) -> StudyResult:
    """Measure suites A to G into a database, or go on; models are by role. None leaves what the suites say."""
    from mlsd.measure.parent.requests import run_study
    from mlsd.planning.request import resolve_study

    return run_study(resolve_study(asked), _path(asked.db), fresh=asked.fresh)


@called_by(RunOptions)
def dry_run(asked: RunOptions) -> tuple[Plan, Forecast]:
    """What `run` would measure, and what that takes of time, memory and disk; nothing is measured."""
    from mlsd.measure.parent.forecast import plan_study
    from mlsd.planning.request import resolve_study

    return plan_study(resolve_study(asked), _path(asked.db))


@called_by(ServerRequest)
def server(asked: ServerRequest) -> ServerResult:
    """Whether a server's speculation is faster and lossless: of the server at `url`, `against` it without one.

    With `launch`, a llama-server program, servers of `target` are started here and stopped afterwards.
    """
    from mlsd.servers.measure import serve

    return serve(asked, _path(asked.db))


@called_by(CalibrateOptions)
def calibrate(asked: CalibrateOptions) -> CalibrationResult:
    """Time passes over k tokens for every k of `rows`, and store them; of a mixture, its experts are counted, too."""
    from mlsd.measure.parent import calibration

    return calibration.calibrate(asked)


def open_study(db: str | Path | None = None, machine: str | None = None, settings: str | None = None) -> Study:
    """The trials of a database, by default the newest, that may be compared; the names choose by the start of a key."""
    from mlsd.analysis.study.study import read_study
    from mlsd.store.newest import newest_study
    from mlsd.store.store import Store

    with Store.open(_path(db) or newest_study(), create=False, read_only=True) as store:
        return read_study(store, machine, settings)


def audit(source: str | Path) -> Audit:
    """Whether the numbers of a table can be true: of a file, a study database, or a published study by name."""
    from mlsd.audits import check, published_tables
    from mlsd.audits.tables import table_contexts
    from mlsd.audits.trials import database_context
    from mlsd.store.database import is_study
    from mlsd.store.store import Store

    if is_study(Path(source)):
        with Store.open(Path(source), read_only=True) as store:
            return check.audit(str(source), database_context(store))
    if str(source) in published_tables.names():
        published = published_tables.load(str(source))
        return check.audit(published.citation, *published_tables.contexts(published))
    return check.audit(str(source), *table_contexts(Path(source)))


def write_report(study: Study, folder: str | Path = "report") -> Written:
    """Write report.html (one self-contained file), report.md and the figures of a study into a folder."""
    from mlsd.report import page

    return page.write_report(study, Path(folder))


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)

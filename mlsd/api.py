"""The public library: what notebooks and scripts may use, each function one answer. `import mlsd` offers it by name.

Functions and what they take are called as the commands and their options are: `bench`, `search` (`mlsd bench
--search`), `run`, `dry_run` (`mlsd run --dry-run`), `server`, `calibrate`, `audit`, with plural names where several may
be given. Models are GGUF paths or ids that ``mlsd models list`` shows; `db` is a study database, by default the
command's own. Everything raises from the tree in `mlsd.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlsd.records import EngineOptions, Sampling

if TYPE_CHECKING:
    from mlsd.analysis.study.study import Study
    from mlsd.audits.rows import Audit
    from mlsd.measure.parent.calibration import CalibrationResult
    from mlsd.measure.parent.forecast import Forecast
    from mlsd.measure.parent.requests import BenchResult, StudyResult
    from mlsd.measure.parent.tune import TuneResult
    from mlsd.planning.plan import Plan
    from mlsd.planning.request import Goal, StudyRequest
    from mlsd.report.page import Written
    from mlsd.servers.measure import ServerResult

Until = float | Literal["decided"] | None  # until the best is known to such a share, or each arm is decided
_GREEDY, _DEFAULTS = Sampling(), EngineOptions()
_BUDGET_S = 600.0  # with `until`


def bench(
    target: str | Path,
    *,
    drafts: Sequence[str | Path] = (),
    drafters: Sequence[str] | None = (),
    gammas: Sequence[int | Literal["adaptive"]] | None = None,
    prompts: Sequence[str | Path] = ("code",),
    depths: Sequence[int] = (0,),
    chat: bool = False,
    think: bool | None = None,
    n_predict: int = 256,
    repeats: int = 3,
    until: Until = None,
    budget_s: float | None = None,
    sampling: Sampling = _GREEDY,
    rollback: str = "auto",
    stop_at_eog: bool = False,
    seed: int = 0,
    engine: EngineOptions = _DEFAULTS,
    db: str | Path | None = None,
    fresh: bool = False,
) -> BenchResult:
    """Measure drafts and methods beside plain decoding in interleaved blocks, and keep the trials.

    A drafter is "NAME" or "NAME:option=value,...", or a class in a file: "./mine.py:Freq"; None: look-ups and the
    local drafts that fit. The same question goes on with the blocks of earlier calls; `fresh` starts it anew.
    """
    fields = _fields(locals(), "db", "fresh")
    from mlsd.measure.parent import requests
    from mlsd.planning.request import bench_request

    return requests.bench(bench_request(**fields), _path(db), fresh=fresh)


def search(
    target: str | Path,
    drafter: str,
    *,
    settings: int = 20,
    drafts: Sequence[str | Path] = (),
    prompts: Sequence[str | Path] = ("code",),
    n_predict: int = 64,
    repeats: int = 4,
    budget_s: float | None = None,
    sampling: Sampling = _GREEDY,
    rollback: str = "auto",
    stop_at_eog: bool = False,
    seed: int = 0,
    engine: EngineOptions = _DEFAULTS,
    db: str | Path | None = None,
) -> TuneResult:
    """Search the fastest gamma and options of a drafter in so many settings, "off" among the answers, or go on."""
    fields = _fields(locals(), "db", "settings")
    from mlsd.measure.parent.tune import tune, tune_request

    return tune(tune_request(**fields, trials=settings), _path(db))


def run(
    *suites: str,
    profile: str | None = None,
    models: Mapping[str, str | Path] | None = None,
    gammas: Sequence[int] | None = None,
    drafts: Sequence[str | Path] | None = None,
    prompts: Sequence[str | Path] | None = None,
    n_predict: int | None = None,
    repeats: int | None = None,
    limit: int | None = None,
    sampling: Sampling = _GREEDY,
    seed: int = 0,
    engine: EngineOptions = _DEFAULTS,
    db: str | Path | None = None,
    fresh: bool = False,
) -> StudyResult:
    """Measure suites A to G into `db` (by default results/PROFILE.sqlite), or go on; `models` are by role.

    None leaves what the suites say.
    """
    request = _study_request(_fields(locals(), "db", "fresh"))
    from mlsd.measure.parent import requests
    from mlsd.measure.parent.blocks import RunSettings

    return requests.run_study(request, _path(db), settings=RunSettings(fresh=fresh, seed=seed))


def dry_run(
    *suites: str,
    profile: str | None = None,
    models: Mapping[str, str | Path] | None = None,
    gammas: Sequence[int] | None = None,
    drafts: Sequence[str | Path] | None = None,
    prompts: Sequence[str | Path] | None = None,
    n_predict: int | None = None,
    repeats: int | None = None,
    limit: int | None = None,
    sampling: Sampling = _GREEDY,
    seed: int = 0,
    engine: EngineOptions = _DEFAULTS,
    db: str | Path | None = None,
) -> tuple[Plan, Forecast]:
    """What `run` would measure, and what that takes of time, memory and disk; nothing is measured."""
    request = _study_request(_fields(locals(), "db"))
    from mlsd.measure.parent.forecast import plan_study

    prepared, forecast = plan_study(request, _path(db))
    return prepared.plan, forecast


def server(
    url: str | None = None,
    *,
    against: str | None = None,
    launch: str | None = None,
    target: str | Path | None = None,
    drafts: Sequence[str | Path] = (),
    drafters: Sequence[str] = (),
    gammas: Sequence[int] | None = None,
    flags: str = "",
    with_engine: bool = False,
    prompts: Sequence[str | Path] = ("code",),
    n_predict: int = 128,
    repeats: int = 3,
    until: Until = None,
    budget_s: float | None = None,
    sampling: Sampling = _GREEDY,
    parallel: Sequence[int] = (1,),
    stop_at_eog: bool = False,
    patience_s: float = 120.0,
    remote: bool = False,
    seed: int = 0,
    engine: EngineOptions = _DEFAULTS,
    db: str | Path | None = None,
) -> ServerResult:
    """Whether a server's speculation is faster and lossless: of the server at `url`, `against` it without one.

    With `launch`, a llama-server program, servers of `target` are started here and stopped afterwards.
    """
    fields = _fields(locals(), "db")
    from mlsd.servers.open import serve
    from mlsd.servers.request import ServerRequest

    return serve(ServerRequest(**fields), _path(db))


def calibrate(
    target: str | Path,
    draft: str | Path | None = None,
    *,
    rows: Sequence[int] = (*range(1, 34), 48, 64),
    depths: Sequence[int] = (128,),
    budget_s: float = 120.0,
    precision: float = 0.02,
    text: str | Path | None = None,
    seed: int = 0,
    engine: EngineOptions = _DEFAULTS,
    db: str | Path | None = None,
) -> CalibrationResult:
    """Time passes over k tokens for every k of `rows`, and store them; of a mixture, its experts are counted, too."""
    fields = _fields(locals(), "db")
    from mlsd.measure.parent import calibration

    return calibration.calibrate(**fields, db=_path(db))


def open_study(db: str | Path | None = None, machine: str | None = None, settings: str | None = None) -> Study:
    """The trials of a database, by default the newest, that may be compared; the names choose by the start of a key."""
    from mlsd.analysis.study.study import read_study
    from mlsd.store.newest import newest_study
    from mlsd.store.store import Store

    with Store.open(_path(db) or newest_study(), create=False, read_only=True) as store:
        return read_study(store, machine, settings)


def audit(source: str | Path) -> Audit:
    """Whether the numbers of a table can be true: of a file, a study database, or a published study by name."""
    from mlsd.audits import check as rules
    from mlsd.audits import published_tables
    from mlsd.audits.tables import table_contexts
    from mlsd.audits.trials import database_context
    from mlsd.store.database import is_study
    from mlsd.store.store import Store

    if is_study(Path(source)):
        with Store.open(Path(source), read_only=True) as store:
            return rules.audit(str(source), database_context(store))
    if str(source) in published_tables.names():
        published = published_tables.load(str(source))
        return rules.audit(published.citation, *published_tables.contexts(published))
    return rules.audit(str(source), *table_contexts(Path(source)))


def write_report(study: Study, folder: str | Path = "report") -> Written:
    """Write report.html (one self-contained file), report.md and the figures of a study into a folder."""
    from mlsd.report import page

    return page.write_report(study, Path(folder))


def _fields(given: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """What a function was called with (its `locals`) but for `others`, as a request names and types it."""
    fields = {name: _plain(value) for name, value in given.items() if name not in others}
    if "stop_at_eog" in fields:
        fields["ignore_eog"] = not fields.pop("stop_at_eog")
    if "until" in fields:
        fields["goal"] = _goal(fields.pop("until"), fields.pop("budget_s"))
    return fields


def _plain(value: Any) -> Any:
    """Paths as text, and what holds several values unchanging."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_plain, value))
    return str(value) if isinstance(value, Path) else value


def _study_request(fields: dict[str, Any]) -> StudyRequest:
    from mlsd.planning.request import Overrides, study_request

    named = {name: fields.pop(name) for name in ("suites", "profile", "models")}
    return study_request(**named, overrides=Overrides(**fields))


def _goal(until: Until, budget_s: float | None) -> Goal | None:
    from mlsd.errors import InputError
    from mlsd.planning.request import Goal

    if until is None:
        if budget_s is not None:
            raise InputError("budget_s needs until.")
        return None
    return Goal(within=None if until == "decided" else until, budget_s=budget_s or _BUDGET_S)


def _path(place: str | Path | None) -> Path | None:
    return None if place is None else Path(place)

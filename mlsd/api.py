"""The public library: what notebooks and scripts may use, each function one answer. `import mlsd` offers it by name.

Models are GGUF paths or ids that ``mlsd models list`` shows; where no database is named, the newest study database
under results/ is read. Everything raises from the tree in `mlsd.errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mlsd.analysis.advise.answer import Answer, Place, Question, answer, check_question
from mlsd.analysis.audit import audit as rules
from mlsd.analysis.audit import published_tables
from mlsd.analysis.audit.imported import read_csv
from mlsd.analysis.audit.rows import Audit
from mlsd.analysis.audit.trials import database_contexts
from mlsd.analysis.predict.arms import read_known
from mlsd.analysis.study.study import Study, read_study
from mlsd.drafters.options import parse_drafter
from mlsd.engine.llama.build.kernels import build_of
from mlsd.errors import InputError
from mlsd.hardware import read_environment
from mlsd.hardware.budget import memory_budget
from mlsd.hardware.chips import peak_bandwidth
from mlsd.measure.process import run_info
from mlsd.measure.run import calibration, runs
from mlsd.measure.run.forecast import Forecast, plan_study
from mlsd.measure.run.runner import RunSettings
from mlsd.measure.run.tune import TuneRequest, TuneResult
from mlsd.measure.run.tune import tune as search
from mlsd.measure.store.database import is_study
from mlsd.measure.store.newest import newest_study, study_databases
from mlsd.measure.store.rows import environment_key
from mlsd.measure.store.store import Store
from mlsd.planning.passes import AppleChip, Engine, apple_chip, unnamed_chip
from mlsd.planning.plan import Overrides, Plan
from mlsd.planning.prepare import BenchRequest, StudyRequest
from mlsd.records import EngineOptions
from mlsd.report import write

FilePath = str | Path


def open_study(db: FilePath | None = None, machine: str | None = None, settings: str | None = None) -> Study:
    """The trials of a database that may be compared, with their fits, claims and audit.

    `machine` and `settings` choose among several, by the start of their keys. Raises: StoreError, AnalysisError.
    """
    with Store.open(_path(db) or newest_study(), create=False, read_only=True) as store:
        return read_study(store, machine, settings)


def plan(*suites: str, profile: str | None = None, db: FilePath | None = None, **changes: Any) -> tuple[Plan, Forecast]:
    """What suites (A to G, or TOML files) would measure, and the time, memory and models that it needs.

    `changes` are the fields of `Overrides`: gammas, prompts, drafts, repeats, n_predict, limit, seed, engine, ...
    """
    prepared, forecast = plan_study(_study_request(suites, profile, changes), _path(db))
    return prepared.plan, forecast


def run(
    *suites: str, profile: str | None = None, db: FilePath | None = None, fresh: bool = False, **changes: Any
) -> runs.StudyResult:
    """Measure suites, each trial committed before the next; the same call again goes on where one stopped.

    Trials go to `db`, by default results/PROFILE.sqlite; `fresh` measures again what is done. `changes` as for `plan`.
    """
    request = _study_request(suites, profile, changes)
    return runs.run_study(request, _path(db), settings=RunSettings(fresh=fresh, seed=request.overrides.seed))


def _study_request(suites: Sequence[str], profile: str | None, changes: dict[str, Any]) -> StudyRequest:
    return StudyRequest(suites=tuple(suites), profile=profile, overrides=Overrides(**changes))


def bench(target: FilePath, *, db: FilePath | None = None, fresh: bool = False, **asked: Any) -> runs.BenchResult:
    """Measure methods beside plain decoding of one target in interleaved blocks, and keep the trials.

    `asked` are the fields of `BenchRequest`: drafts, drafters, gamma, prompts, n_predict, repeats, sampling, ... Trials
    go to `db`, by default results/bench.sqlite; the same bench again adds to them, `fresh` starts anew.
    """
    return runs.bench(BenchRequest(target=str(target), **asked), _path(db), fresh=fresh)


def tune(
    target: FilePath,
    drafter: str,
    *,
    trials: int = 20,
    budget_s: float | None = None,
    db: FilePath | None = None,
    **asked: Any,
) -> TuneResult:
    """Search gamma and the options of a method that decode fastest on a target; the answer may be to leave it off.

    `asked` are the fields of `BenchRequest` for every setting. The same call again goes on where one stopped.
    """
    setting = BenchRequest(target=str(target), **{"n_predict": 64, "repeats": 4, **asked})
    request = TuneRequest(drafter=parse_drafter(drafter), setting=setting, trials=trials, budget_s=budget_s)
    return search(request, _path(db))


def calibrate(
    model: FilePath, draft: FilePath | None = None, *, db: FilePath | None = None, **asked: Any
) -> calibration.CalibrationResult:
    """Time passes of a model over k tokens for many k, and of a draft beside it, and store them beside trials.

    `asked` are the fields of `CalibrationRequest`: rows, depths, budget_s, precision, engine, ...
    """
    request = calibration.CalibrationRequest(model=str(model), draft=None if draft is None else str(draft), **asked)
    return calibration.calibrate(request, _path(db))


def audit(source: FilePath) -> Audit:
    """Whether the numbers of a table can be true: of a CSV file, a study database, or a published study by name."""
    if is_study(Path(source)):
        with Store.open(Path(source), read_only=True) as store:
            return rules.audit(str(source), *database_contexts(store))
    if str(source) in published_tables.names():
        published = published_tables.load(str(source))
        return rules.audit(published.citation, published_tables.context(published))
    return rules.audit(str(source), read_csv(Path(source)))


def advise(
    target: FilePath,
    *,
    drafts: Sequence[str] | None = None,
    workload: str | None = None,
    gammas: Sequence[int] = (1, 2, 4, 8, 16),
    quant: str | None = None,
    chip: str | None = None,
    runtime: Engine = "llama.cpp",
    build: int = 0,
    acceptance: float | None = None,
    databases: Sequence[FilePath] = (),
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen record
) -> Answer:
    """Predict decode tok/s of a target for each draft, method and gamma, "off" included, and what decides it.

    Known is what `databases` hold, by default all under results/. `chip` is another machine: "M2 Ultra", "800 GB/s",
    with passes of `runtime` and of llama.cpp's `build` (0: the one that ships with mlsd). `acceptance` of a token is
    taken as stated, where it is, in place of what is known.
    """
    check_question(gammas, acceptance)
    with ExitStack() as stack:
        known = read_known(
            stack.enter_context(Store.open(Path(path), create=False, read_only=True))
            for path in databases or study_databases()
        )
    question = Question(
        target=str(target),
        drafts=None if drafts is None else tuple(drafts),
        workload=workload,
        gammas=tuple(gammas),
        quant=quant,
        chip=None if chip is None else _chip(chip),
        runtime=runtime,
        build=build,
        acceptance=acceptance,
    )
    return answer(question, known, _here(engine) if chip is None else None)


def write_report(found: Study, folder: FilePath = "report") -> write.Written:
    """Write report.html (one self-contained file), report.md and the figures of a study into a folder."""
    return write.write_report(found, Path(folder))


def _here(engine: EngineOptions) -> Place:
    """The machine at hand, as the native library sees it."""
    backend = run_info(engine)
    environment = read_environment(backend)
    budget = memory_budget(environment, backend.memory_bytes)
    return Place(
        environment_key=environment_key(environment),
        chip=apple_chip(
            environment.chip or "", peak_gb_s=environment.peak_bandwidth_gb_s, gpu_cores=environment.gpu_cores
        ),
        safe_bytes=None if budget is None else budget.limit_bytes,
        build=build_of(environment.llama_cpp_build) or 0,
    )


def _chip(chip: str) -> AppleChip:
    """A chip by name, or by a bandwidth alone."""
    try:
        value = float(chip.lower().removesuffix("gb/s").strip())
    except ValueError:
        known = apple_chip(chip)
        if known is None:
            why = peak_bandwidth(chip).source
            raise InputError(
                f"--chip {chip}: {why}.",
                hint='Give the peak bandwidth of its memory, as Apple states it: --chip "400 GB/s".',
            ) from None
        return known
    if not 0 < value < float("inf"):
        raise InputError(f"A bandwidth of {chip} is impossible.")
    return unnamed_chip(value)


def _path(place: FilePath | None) -> Path | None:
    return None if place is None else Path(place)

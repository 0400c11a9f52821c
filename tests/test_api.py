"""The public library: its names are pinned, it costs nothing until used, and it does what the commands do."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import mlsd
from mlsd import errors as mlsd_errors

SURFACE = {
    "EngineOptions",
    "Sampling",
    "__version__",
    "advise",
    "audit",
    "bench",
    "calibrate",
    "draw",
    "open_study",
    "plan",
    "run",
    "tune",
    "write_report",
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is written under results/ of the folder that one is in."""
    monkeypatch.chdir(tmp_path)


def test_the_surface_is_pinned_and_every_part_says_what_it_does() -> None:
    assert set(mlsd.__all__) == SURFACE == set(dir(mlsd))
    for name in SURFACE - {"__version__"}:
        assert inspect.getdoc(getattr(mlsd, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mlsd.nonsense  # noqa: B018


def test_importing_it_loads_no_library_and_using_it_starts_nothing_native() -> None:
    code = (
        "import sys, mlsd; light = sorted(m for m in sys.modules if m.startswith('mlsd.'));"
        "mlsd.plan; print(light, 'llama_cpp' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['mlsd.version'] False"


def test_a_study_is_planned_run_and_reported_in_a_few_lines() -> None:
    small = {"n_predict": 12, "repeats": 2, "gammas": (2,), "prompts": ("factual",)}
    engine = mlsd.EngineOptions(n_threads=1)
    plan, forecast = mlsd.plan("B", profile="tiny", engine=engine, **small)
    result = mlsd.run("B", profile="tiny", engine=engine, **small)
    assert result.outcome.n_ok == len(list(plan.slots())) == forecast.time.n_trials
    assert mlsd.run("B", profile="tiny", engine=engine, **small).outcome.n_ok == 0
    study = mlsd.open_study()
    assert len(study.trials) == result.outcome.n_ok
    written = mlsd.write_report(study, "page")
    assert Path(written.html).is_file()
    assert list(study.arms["suite"].unique()) == ["B"] and study.answer


def test_a_bench_a_search_and_a_calibration_meet_in_one_database_that_advice_reads() -> None:
    engine = mlsd.EngineOptions(n_threads=1)
    small = {"n_predict": 12, "repeats": 2, "prompts": ("factual",), "engine": engine}
    bench = mlsd.bench("tiny-dense", drafters=("pld",), gammas=(2,), **small)
    tuned = mlsd.tune("tiny-dense", "pld:match=first", trials=1, **{**small, "repeats": 3})
    timed = mlsd.calibrate("tiny-dense", rows=(1, 3, 5), budget_s=1.0, engine=engine)
    assert bench.database == tuned.database == timed.database == "results/bench.sqlite"
    found = mlsd.advise("tiny-dense", gammas=(2,), engine=engine)
    assert "pld" in {row.drafter for row in found.recommendation.prospects}
    assert mlsd.audit(bench.database).rows


def test_published_tables_are_audited_by_name_and_others_by_file(tmp_path: Path) -> None:
    assert mlsd.audit("study").counts()["impossible"] > 0
    with pytest.raises(mlsd_errors.InputError):
        mlsd.audit(tmp_path / "nothing.csv")

"""The public library: its names are pinned, it costs nothing until used, and it does what the commands do."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from click import Context, Group

import mlsd
from mlsd import errors as mlsd_errors
from mlsd.cli.main import cli
from tests.servers.fake import FakeServer

SURFACE = {"Drafter", "EngineOptions", "Proposal", "Sampling", "__version__", "advise", "audit", "bench", "calibrate",
           "draw", "dry_run", "open_study", "run", "search", "server", "write_report"}  # fmt: skip
COMMANDS_OF = {"bench": "bench", "search": "search", "run": "run", "dry_run": "run", "server": "server",
               "calibrate": "calibrate", "advise": "advise"}  # fmt: skip
# In place of several options or of an argument: records, and names of the same things as Python's lists.
NOT_TYPED = {"sampling", "engine", "drafter", "settings", "url", "drafts", "gammas", "limit", "target", "db",
             "build", "n_predict", "rivals"}  # fmt: skip


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
        "mlsd.bench; print(light, 'llama_cpp' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[] False"


def test_every_function_names_what_it_takes_with_types_and_the_database_alike() -> None:
    """As `help` shows it: no `**asked`, nothing without a type; what the command of that name has is called so."""
    for name in SURFACE:
        made = getattr(mlsd, name)
        if not inspect.isfunction(made):
            continue
        taken = inspect.signature(made).parameters
        assert all(
            one.kind is not one.VAR_KEYWORD and one.annotation not in (one.empty, "Any") for one in taken.values()
        )
        assert not {"database", "databases", "path"} & set(taken), name
        command = COMMANDS_OF.get(name)
        if command is None:
            continue
        typed = cli.get_command(Context(cli), command)
        assert typed is not None
        parts = typed.commands.values() if isinstance(typed, Group) else (typed,)
        known = {option.name for part in parts for option in part.params} | NOT_TYPED
        assert not set(taken) - known, (name, set(taken) - known)


def test_it_is_there_in_half_a_second_of_a_processor() -> None:
    """Of this process's own time, whatever else the machine does: 0.02 s today."""
    code = "import time; a = time.process_time(); import mlsd; mlsd.bench; print(time.process_time() - a)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(out) < 0.5


@pytest.mark.heavy
def test_a_study_is_planned_run_and_reported_in_a_few_lines() -> None:
    small = {"n_predict": 12, "repeats": 2, "gammas": (2,), "prompts": ("factual",)}
    engine = mlsd.EngineOptions(n_threads=1)
    plan, forecast = mlsd.dry_run("B", profile="tiny", engine=engine, **small)
    result = mlsd.run("B", profile="tiny", engine=engine, **small)
    assert result.outcome.n_ok == len(list(plan.slots())) == forecast.time.n_trials
    assert mlsd.run("B", profile="tiny", engine=engine, **small).outcome.n_ok == 0
    study = mlsd.open_study()
    assert len(study.trials) == result.outcome.n_ok
    written = mlsd.write_report(study, "page")
    assert Path(written.html).is_file()
    assert list(study.arms["suite"].unique()) == ["B"] and study.answer


@pytest.mark.heavy
def test_a_bench_a_search_and_a_calibration_meet_in_one_database_that_advice_reads() -> None:
    engine = mlsd.EngineOptions(n_threads=1)
    small = {"n_predict": 12, "repeats": 2, "prompts": ("factual",), "engine": engine}
    bench = mlsd.bench("tiny-dense", drafters=("pld",), gammas=(2,), **small)
    searched = mlsd.search("tiny-dense", "pld:match=first", settings=1, **{**small, "repeats": 3})
    timed = mlsd.calibrate("tiny-dense", rows=(1, 3, 5), budget_s=1.0, engine=engine)
    assert bench.database == searched.database == timed.database == "results/bench.sqlite"
    found = mlsd.advise("tiny-dense", gammas=(2,), engine=engine)
    assert "pld" in {row.drafter for row in found.recommendation.prospects}
    assert mlsd.audit(bench.database).rows


def test_a_server_is_measured_with_and_without_its_speculation() -> None:
    with FakeServer(token_s=0.002) as plain, FakeServer(draft=True, token_s=0.002) as drafting:
        found = mlsd.server(url=drafting.url, against=plain.url, n_predict=8, repeats=1, db="own.sqlite")
    assert found.database == "own.sqlite" and sorted(one.is_plain for one in found.results) == [False, True]


def test_published_tables_are_audited_by_name_and_others_by_file(tmp_path: Path) -> None:
    assert mlsd.audit("study").counts()["impossible"] > 0
    with pytest.raises(mlsd_errors.InputError):
        mlsd.audit(tmp_path / "nothing.csv")

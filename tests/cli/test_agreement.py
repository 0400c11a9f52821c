"""One database, asked four ways: what a bench says of it, a report, advice and a search are one answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.results.bench_arms import bench_arms
from mlsd.cli.main import main
from mlsd.cli.start.bench import _answer
from mlsd.measure.run.race import standings
from mlsd.measure.run.runner import RunOutcome
from mlsd.measure.run.runs import BenchResult, BenchTrial
from mlsd.measure.store.store import Store
from mlsd.records import Case, Trial
from tests.cli.conftest import Ran

Mlsd = Callable[..., Ran]
PAIR = ("tiny-dense", "--draft", "tiny-draft", "--prompt", "code", "--n-predict", "32", "--n-threads", "1")
TOKEN_NS = 4_000_000  # of plain decoding

# gamma and block -> how many times as fast as plain decoding a trial was
ANSWERS: dict[str, Callable[[int, int], float]] = {
    "gamma 4 wins": lambda gamma, block: 1.4 if gamma == 4 else 0.8,
    "all lose": lambda gamma, block: 0.7,
    "it does not matter": lambda gamma, block: 1.0,
    "nobody knows": lambda gamma, block: (0.6, 1.7, 1.0)[block % 3],
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real bench of five gammas, in three blocks."""
    path = tmp_path_factory.mktemp("measured") / "real.sqlite"
    with pytest.MonkeyPatch.context() as folders:
        for name in ("MLSD_HOME", "MLSD_CACHE"):
            folders.setenv(name, str(path.parent / "own"))
        main(["bench", *PAIR, "--gamma", "1,2,4,8,16", "--db", str(path), "-q"])
    return path


def timed(trial: Trial, times: float) -> Trial:
    """The trial as if each of its tokens had taken so many times less than plain decoding takes."""
    own = round(TOKEN_NS / times * (1 + 0.002 * (trial.block % 3)))
    rounds = tuple(
        msgspec.structs.replace(one, verify_ns=own * one.committed, draft_ns=0, rollback_ns=0, sample_ns=0, other_ns=0)
        for one in trial.rounds
    )
    decode_ns = sum(one.verify_ns for one in rounds)
    return msgspec.structs.replace(trial, rounds=rounds, decode_ns=decode_ns, conditions=None, disturbed=False)


def with_times(measured: Path, path: Path, answer: str) -> Path:
    """The same trials with times that leave no doubt what the answer is."""
    with Store.open(measured, read_only=True) as real, Store.open(path) as made:
        (run,) = real.runs()
        run_id, cases = made.begin_run(run.environment, run.plan, run.seed), real.cases()
        made.add_models(real.models().values())
        made.add_cases(run_id, cases)
        for stored in real.trials():
            case = cases[stored.trial.case_id]
            times = ANSWERS[answer](case.gamma, stored.trial.block) if case.arm == "sd" else 1.0
            made.add_trial(run_id, timed(stored.trial, times))
        made.end_run(run_id)
    return path


def benched(path: Path) -> BenchResult:
    """What a bench of these trials hands to its table and its sentence."""
    with Store.open(path, read_only=True) as store:
        cases: dict[str, Case] = store.cases()
        rows = tuple(BenchTrial(case=cases[one.trial.case_id], trial=one.trial) for one in store.trials())
    decisions = standings((row.case, row.trial) for row in rows)
    outcome = RunOutcome(run_id=1, n_ok=len(rows), n_failed=0, n_skipped=0, n_left=0)
    return BenchResult(database=str(path), outcome=outcome, warnings=(), trials=rows, decisions=decisions)


@pytest.mark.heavy
@pytest.mark.parametrize("answer", ANSWERS)
def test_bench_report_advise_and_tune_say_the_same(
    answer: str, measured: Path, tmp_path: Path, mlsd: Mlsd, capfd: pytest.CaptureFixture[str]
) -> None:
    path = with_times(measured, tmp_path / "study.sqlite", answer)
    result = benched(path)
    _answer(result, bench_arms(result.trials, result.decisions), "tiny-dense")
    bench = capfd.readouterr().out
    report = mlsd("report", "--db", path, "-o", tmp_path / "report").out
    advise = json.loads(mlsd("advise", "tiny-dense", "--db", path, "--draft", "tiny-draft", "--json").out)["advice"]
    search = ("tune", *PAIR, "--drafter", "draft-model", "--db", path, "--budget-s", "0.000001", "--json")
    tune = json.loads(mlsd(*search).out)["result"]  # which has no time for a block, and so judges what is there
    if answer == "gamma 4 wins":
        assert "switch speculation on with tiny-draft, gamma 4" in bench
        assert re.search("tiny-draft, gamma 4", report) and "leave it off" not in report
        assert advise["verdict"] == "faster" and advise["best"]["gamma"] == 4
        assert tune["best"]["gamma"] == 4
    else:
        assert "keep speculation off" in bench and "leave it off for everything here" in report
        assert tune["best"] is None
        assert advise["verdict"] == ("measure" if answer == "nobody knows" else "slower")
        assert ("nothing is decided to be faster yet" in bench) == (answer == "nobody knows")
        assert ("undecided" in report) == (answer == "nobody knows")

"""A report of 306 trials within its time, and of 100,000 trials in memory that does not grow with the rounds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks.harness import Result, of_samples
from mlsd.records import Case, DrafterSpec, Environment, ModelFacts, ModelRef, PromptRef, Round, Status, Trial
from mlsd.store.store import Store

PLACE = Environment(host="0" * 16, os="any", machine="any", backend="CPU", llama_cpp_build="0")
TARGETS = [ModelRef(id=f"target-{i}", sha256=f"{i}" * 64, n_bytes=10**9) for i in range(3)]
DRAFT = ModelRef(id="draft", sha256="d" * 64, n_bytes=10**8)
PROMPTS = ("factual", "code", "reasoning", "chinese")
GAMMAS = (0, 4, 8, 16)
MAX_SECONDS, MAX_GROWTH = 10.0, 1.25

_CHILD = """
import json, resource, sys, time
started = time.perf_counter()
from pathlib import Path
from mlsd.analysis.study.study import read_study
from mlsd.store.store import Store
from mlsd.report.write import write_report
with Store.open(Path(sys.argv[1]), read_only=True) as store:
    study = read_study(store)
write_report(study, Path(sys.argv[2]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([time.perf_counter() - started, peak]))
"""


def run() -> list[Result]:
    """Seconds and peak memory of whole reports, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        study = [_measure(place, n_trials=306, n_rounds=100) for _ in range(3)]
        few = _measure(place, n_trials=100_000, n_rounds=4)
        many = _measure(place, n_trials=100_000, n_rounds=40)
    growth = many[1] / few[1]
    return [
        of_samples("report of 306 trials with 30,600 rounds", [s for s, _ in study], "s", at_most=MAX_SECONDS),
        _result("report of 100,000 trials with 400,000 rounds", few[0], "s"),
        _result("report of 100,000 trials with 4,000,000 rounds", many[0], "s"),
        of_samples("peak memory, 306 trials", [peak / 1e6 for _, peak in study], "MB"),
        _result("peak memory, 100,000 trials, 400,000 rounds", few[1] / 1e6, "MB"),
        _result("peak memory, 100,000 trials, 4,000,000 rounds", many[1] / 1e6, "MB"),
        _result("memory with ten times the rounds", growth, "ratio", MAX_GROWTH),
    ]


def _result(name: str, value: float, unit: str, at_most: float | None = None) -> Result:
    bar = "" if at_most is None else f"<= {at_most:g}"
    return Result(name, value, value, value, unit, bar, None if at_most is None else value <= at_most)


def _measure(folder: Path, n_trials: int, n_rounds: int) -> tuple[float, float]:
    """Seconds from the first import to the last file, and peak bytes."""
    path = folder / f"{n_trials}-{n_rounds}.sqlite"
    _fill(path, n_trials, n_rounds)
    out = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), str(folder / path.stem)], capture_output=True, text=True, check=True
    )
    path.unlink()
    seconds, peak = json.loads(out.stdout)
    return float(seconds), float(peak)


def _fill(path: Path, n_trials: int, n_rounds: int) -> None:
    """A study of so many trials, written as the runner writes them but in one transaction."""
    cases = [_case(target, prompt, gamma) for target in TARGETS for prompt in PROMPTS for gamma in GAMMAS]
    with Store.open(path) as store:
        run_id = store.begin_run(PLACE, {"profile": "none"}, 0)
        facts = [ModelFacts(ref=ref, architecture="qwen35", active_bytes=ref.n_bytes) for ref in (*TARGETS, DRAFT)]
        store.add_models(facts)
        store.add_cases(run_id, cases)
        from mlsd.store import rowcodec
        from mlsd.store.rows import environment_key

        key, connection = environment_key(PLACE), store._connection  # one commit a block is the runner's promise
        connection.execute("BEGIN")
        for i in range(n_trials):
            number, repeat, position = i // len(GAMMAS), i // len(cases), i % len(GAMMAS)
            if position == 0:
                columns, values = "run_id, environment_key, number, repeat", (run_id, key, number, repeat)
                block_id = connection.execute(f"INSERT INTO block ({columns}) VALUES (?,?,?,?)", values).lastrowid or 0
            trial = _trial(cases[i % len(cases)], number, repeat, position, n_rounds)
            connection.execute(
                f"INSERT INTO trial ({rowcodec.TRIAL_COLUMNS}) VALUES ({rowcodec.TRIAL_MARKS})",
                rowcodec.trial_row(block_id, trial),
            )
        connection.execute("COMMIT")
        store.end_run(run_id)


def _case(target: ModelRef, prompt: str, gamma: int) -> Case:
    spec = DrafterSpec(name="draft-model", draft=DRAFT) if gamma else DrafterSpec()
    ref = PromptRef(key=prompt, sha256="p" * 64, workload=prompt)
    return Case(suite="B", target=target, prompt=ref, n_predict=101, drafter=spec, gamma=gamma)


def _trial(case: Case, block: int, repeat: int, position: int, n_rounds: int) -> Trial:
    gamma = case.gamma
    rounds = tuple(
        Round(
            proposed=gamma,
            accepted=(i + gamma) % (gamma + 1),
            committed=(i + gamma) % (gamma + 1) + 1,
            rows=gamma + 1,
            draft_ns=1_000_000 * gamma,
            verify_ns=10_000_000 + 500_000 * gamma + 7_919 * (block * 31 + i) % 200_000,
            rollback_ns=50_000,
            sample_ns=10_000,
            other_ns=5_000,
        )
        for i in range(n_rounds)
    )
    base = Trial(
        case_id=case.id, arm=case.arm, gamma=gamma, block=block, repeat=repeat, position=position,
        status=Status.VALID,
        started_at=f"2026-03-01T{block // 3600 % 24:02d}:{block // 60 % 60:02d}:{block % 60:02d}.000+00:00",
    )  # fmt: skip
    return msgspec.structs.replace(
        base,
        n_prompt=64,
        tokens=tuple(range(1 + sum(r.committed for r in rounds))),
        prefill_ns=10**7,
        decode_ns=sum(r.wall_ns for r in rounds),
        rounds=rounds,
    )

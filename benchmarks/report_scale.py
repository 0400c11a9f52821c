"""Every reading command on a study of 10,000 trials and on one ten times as large; and a record that is checked."""

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result, of_samples
from mlsd.analysis.audit.record_check import verify
from mlsd.formats.decode_again import decode_again
from mlsd.formats.record import write_record
from mlsd.planning.prompts import load_prompt
from mlsd.records import (
    Case,
    DrafterSpec,
    Environment,
    Losslessness,
    ModelFacts,
    ModelRef,
    PromptRef,
    Round,
    Status,
    Trial,
)
from mlsd.store.store import Store

N_TRIALS, N_MORE, N_TOKENS = 10_008, 100_080, 64
N_RECORDED, RECORDED_TOKENS = 378, 256
MAX_SECONDS, MAX_MB, MAX_GROWTH = 2.0, 200.0, 11.0  # ten times as many, and noise
MAX_PAGE_SECONDS, MAX_PAGE_MB = 6.0, 350.0  # a page draws fifteen figures, whatever it holds
PLACE = Environment(host="0" * 16, os="any", machine="any", backend="CPU", llama_cpp_build="0")
TARGETS = [ModelRef(id=f"target-{i}", sha256=f"{i}" * 64, n_bytes=10**9) for i in range(3)]
DRAFT = ModelRef(id="draft", sha256="d" * 64, n_bytes=10**8)
PROMPTS = ("factual", "code", "reasoning", "chinese")
GAMMAS = (0, 4, 8, 16)
COMMANDS = (
    "results", "results trials --all", "results trials --json", "results trial 5", "audit study", "results claims",
    "results fits", "advise tiny-moe --chip M1", "results export csv -o {out}.csv",
    "results export json -o {out}.json", "report -o {out}", "record write {db} -o {out}.record",
)  # fmt: skip


def run() -> Iterator[Result]:
    yield from record()
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder) / "few.sqlite", Path(folder) / "many.sqlite"
        n_rounds = write_study(few, N_TRIALS)
        write_study(many, N_MORE)
        for number, command in enumerate(COMMANDS):
            seconds, mb = _measured(command, few, number)
            shown = f"{command.partition(' -o')[0]}, {N_TRIALS} trials, {n_rounds} rounds"
            page = command.startswith("report")
            yield of_samples(shown, [seconds], "s", at_most=MAX_PAGE_SECONDS if page else MAX_SECONDS)
            yield of_samples(f"{shown}: memory", [mb], "MB", at_most=MAX_PAGE_MB if page else MAX_MB)
            more, more_mb = _measured(command, many, number)
            yield of_samples(f"{shown}: ten times as many", [more / seconds], "ratio", at_most=MAX_GROWTH)
            yield of_samples(f"{shown}: memory of ten times as many", [more_mb], "MB")


def record() -> Iterator[Result]:
    """A record of 378 trials: its size, and the time to check it without models."""
    with tempfile.TemporaryDirectory() as folder:
        database, path = Path(folder) / "study.sqlite", Path(folder) / "study.record.gz"
        n_rounds = write_study(database, N_RECORDED, RECORDED_TOKENS)
        with Store.open(database, read_only=True) as store:
            write_record(store, path)
        yield of_samples(
            f"record of {N_RECORDED} trials, {n_rounds} rounds", [path.stat().st_size / 1e6], "MB", at_most=1.0
        )
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            found = verify(path, decode_again)
            seconds.append(time.perf_counter() - started)
            assert not found.problems, found.problems[:3]
        yield of_samples(f"checking a record of {N_RECORDED} trials without models", seconds, "s", at_most=10.0)


def _measured(command: str, db: Path, number: int) -> tuple[float, float]:
    """Processor seconds and peak megabytes of a command in a process of its own, its modules compiled as installed."""
    compiled = {"PYTHONPYCACHEPREFIX": str(db.with_name("compiled")), "PYTHONDONTWRITEBYTECODE": ""}
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    for turn in range(2):  # the first compiles what the second is measured with
        words = [word.format(db=db, out=db.with_suffix(f".{number}.{turn}")) for word in command.split()]
        words += [] if str(db) in words else ["--db", str(db)]
        program = [sys.executable, "-c", "from mlsd.cli import main; main()", *words]
        child = os.posix_spawn(sys.executable, program, os.environ | compiled, file_actions=silent)
        _, status, used = os.wait4(child, 0)
        if code := os.waitstatus_to_exitcode(status):
            raise RuntimeError(f"mlsd {command} ended with {code}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def write_study(path: Path, n_trials: int, n_tokens: int = N_TOKENS) -> int:
    """A study of so many trials, its times as noisy as measured; returns how many rounds it has."""
    rng, n_rounds = random.Random(1), 0
    texts = {(t.id, p): tuple(rng.randrange(248_320) for _ in range(n_tokens)) for t in TARGETS for p in PROMPTS}
    cases = [_case(target, prompt, gamma, n_tokens) for target in TARGETS for prompt in PROMPTS for gamma in GAMMAS]
    with Store.open(path) as store:
        run_id = store.begin_run(PLACE, {"profile": "none"}, 0)
        facts = [ModelFacts(ref=ref, architecture="qwen35", active_bytes=ref.n_bytes) for ref in (*TARGETS, DRAFT)]
        store.add_models(facts)
        store.add_cases(run_id, cases)
        for first in range(0, n_trials, len(GAMMAS)):
            own = [cases[i % len(cases)] for i in range(first, first + len(GAMMAS))]
            repeat = first // len(cases)
            block = [
                _trial(rng, case, texts[case.target.id, case.prompt.key], first // len(GAMMAS), repeat, position)
                for position, case in enumerate(own)
            ]
            n_rounds += sum(len(trial.rounds) for trial in block)
            store.add(run_id, block)
        store.end_run(run_id)
    return n_rounds


def _case(target: ModelRef, prompt: str, gamma: int, n_tokens: int) -> Case:
    spec = DrafterSpec(name="draft-model", draft=DRAFT) if gamma else DrafterSpec()
    ref = PromptRef(key=prompt, sha256=load_prompt(prompt).sha256, workload=prompt)
    return Case(suite="B", target=target, prompt=ref, n_predict=n_tokens, drafter=spec, gamma=gamma)


def _trial(rng: random.Random, case: Case, tokens: tuple[int, ...], block: int, repeat: int, position: int) -> Trial:
    """Times of a chip with a 20 GB target: passes scatter by 1 %, what is short by 10 %; 55 % of drafts accepted."""
    rounds, left = [], len(tokens) - 1
    while left:
        proposed = min(case.gamma, left - 1)
        accepted = next((k for k in range(proposed) if rng.random() > 0.55), proposed)
        left -= accepted + 1
        rounds.append(
            Round(
                proposed=proposed,
                accepted=accepted,
                committed=accepted + 1,
                rows=1 + proposed,
                draft_ns=_ns(rng, 2.1 * proposed, 0.01) if proposed else _ns(rng, 0.0004, 0.1),
                verify_ns=_ns(rng, 18 + 0.8 * proposed, 0.01),
                rollback_ns=_ns(rng, 0.06 if proposed else 0.001, 0.1),
                sample_ns=_ns(rng, 0.015, 0.1),
                other_ns=_ns(rng, 0.005, 0.1),
            )
        )
    second = block * 10 + position
    days, rest = divmod(second, 86_400)
    return Trial(
        case_id=case.id, arm=case.arm, gamma=case.gamma, block=block, repeat=repeat, position=position,
        status=Status.VALID, n_prompt=64, tokens=tokens, prefill_ns=_ns(rng, 300, 0.01), rounds=tuple(rounds),
        started_at=f"2026-03-{1 + days:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}.000+00:00",
        decode_ns=sum(one.wall_ns for one in rounds), losslessness=Losslessness(verdict="lossless"),
    )  # fmt: skip


def _ns(rng: random.Random, ms: float, spread: float) -> int:
    return max(1, round(rng.gauss(ms, ms * spread) * 1e6))

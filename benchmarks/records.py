"""A record of 378 trials, its rounds as noisy as measured: its size, and the time to check it without models."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.harness import Result, of_samples
from benchmarks.report_scale import GAMMAS, PLACE, PROMPTS, TARGETS
from mlsd.analysis.audit.verification import verify
from mlsd.formats.decode_again import decode_again
from mlsd.formats.record import write_record
from mlsd.planning.prompts import load_prompt
from mlsd.records import Case, DrafterSpec, Losslessness, ModelFacts, ModelRef, PromptRef, Round, Status, Trial
from mlsd.store.store import Store

N_TRIALS, N_TOKENS = 378, 256
DRAFT = ModelRef(id="draft", sha256="d" * 64, n_bytes=10**8)


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        database, path = Path(folder) / "study.sqlite", Path(folder) / "study.record.json.gz"
        n_rounds = _fill(database)
        with Store.open(database, read_only=True) as store:
            write_record(store, path)
        yield of_samples(
            f"record of {N_TRIALS} trials, {n_rounds} rounds", [path.stat().st_size / 1e6], "MB", at_most=1.0
        )
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            found = verify(path, decode_again)
            seconds.append(time.perf_counter() - started)
            assert not found.problems, found.problems[:3]
        yield of_samples(f"checking a record of {N_TRIALS} trials without models", seconds, "s", at_most=10.0)


def _fill(path: Path) -> int:
    rng, n_rounds = random.Random(1), 0
    texts = {(target.id, prompt): _output(rng) for target in TARGETS for prompt in PROMPTS}
    cases = [_case(target, prompt, gamma) for target in TARGETS for prompt in PROMPTS for gamma in GAMMAS]
    with Store.open(path) as store:
        run_id = store.begin_run(PLACE, {"profile": "none"}, 0)
        facts = [ModelFacts(ref=ref, architecture="qwen35", active_bytes=ref.n_bytes) for ref in (*TARGETS, DRAFT)]
        store.add_models(facts)
        store.add_cases(run_id, cases)
        for first in range(0, N_TRIALS, 4):
            own = [cases[i % len(cases)] for i in range(first, first + 4)]
            block = [_trial(rng, case, texts[case.target.id, case.prompt.key], first + i) for i, case in enumerate(own)]
            n_rounds += sum(len(trial.rounds) for trial in block)
            store.add(run_id, block)
        store.end_run(run_id)
    return n_rounds


def _output(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(248_320) for _ in range(N_TOKENS))


def _case(target: ModelRef, prompt: str, gamma: int) -> Case:
    spec = DrafterSpec(name="draft-model", draft=DRAFT) if gamma else DrafterSpec()
    ref = PromptRef(key=prompt, sha256=load_prompt(prompt).sha256, workload=prompt)
    return Case(suite="B", target=target, prompt=ref, n_predict=N_TOKENS, drafter=spec, gamma=gamma)


def _trial(rng: random.Random, case: Case, tokens: tuple[int, ...], i: int) -> Trial:
    """Times of a chip with a 20 GB target: passes scatter by 1 %, what is short by 10 %; 55 % of drafts accepted."""
    rounds, left = [], N_TOKENS - 1
    while left:
        proposed = min(case.gamma, left - 1)
        accepted = next((k for k in range(proposed) if rng.random() > 0.55), proposed)
        left -= accepted + 1
        verify_ms = 18 + 0.8 * proposed
        rounds.append(
            Round(
                proposed=proposed,
                accepted=accepted,
                committed=accepted + 1,
                rows=1 + proposed,
                draft_ns=_ns(rng, 2.1 * proposed, 0.01) if proposed else _ns(rng, 0.0004, 0.1),
                verify_ns=_ns(rng, verify_ms, 0.01),
                rollback_ns=_ns(rng, 0.06 if proposed else 0.001, 0.1),
                sample_ns=_ns(rng, 0.015, 0.1),
                other_ns=_ns(rng, 0.005, 0.1),
            )
        )
    decode_ns = sum(one.wall_ns for one in rounds)
    base = Trial(
        case_id=case.id, arm=case.arm, gamma=case.gamma, block=i // 4, repeat=i // 48, position=i % 4,
        status=Status.VALID,
        started_at=f"2026-03-01T{i // 60:02d}:{i % 60:02d}:00.000+00:00",
    )  # fmt: skip
    return msgspec.structs.replace(
        base,
        n_prompt=64,
        tokens=tokens,
        prefill_ns=_ns(rng, 300, 0.01),
        decode_ns=decode_ns,
        rounds=tuple(rounds),
        losslessness=Losslessness(verdict="lossless"),
    )


def _ns(rng: random.Random, ms: float, spread: float) -> int:
    return max(1, round(rng.gauss(ms, ms * spread) * 1e6))

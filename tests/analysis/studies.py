"""Study databases of known content: every time and every acceptance is set, so every figure has a known answer."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

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
from mlsd.store.sessions import as_stored
from mlsd.store.store import Store
from mlsd.trials.rates import counts_of
from mlsd.trials.results import Measured, SessionPlan
from tests.measure.examples import store_trials

MS = 1_000_000
MACHINE = Environment(
    host="a" * 16, os="macOS 26.5", machine="arm64", chip="Apple M2", backend="Metal", device="Apple M2",
    mlsd_version="0.1.0", llama_cpp_python_version="0.3.36", llama_cpp_build="b8240", peak_bandwidth_gb_s=100.0,
)  # fmt: skip
PROMPTS = ("factual", "code", "reasoning", "chinese")


def model(name: str, n_bytes: int = 4_000_000, experts: int | None = None) -> ModelFacts:
    """Facts of a model that does not exist."""
    return ModelFacts(
        ref=ModelRef(id=name, sha256=(name.encode().hex() * 64)[:64], n_bytes=n_bytes),
        architecture="qwen35moe" if experts else "qwen35",
        n_layers=4,
        n_experts=experts,
        n_experts_used=2 if experts else None,
        n_parameters=n_bytes,
        n_parameters_active=n_bytes // 2 if experts else n_bytes,
        weight_bytes=n_bytes,
        active_bytes=n_bytes // 2 if experts else n_bytes,
        tensor_types={"Q8_0": 10},
    )


MOE, DENSE, DRAFT = model("tiny-moe-q4_0", 8_000_000, experts=16), model("tiny-dense"), model("tiny-draft", 1_000_000)


def case(
    target: ModelFacts, prompt: str, gamma: int = 0, suite: str = "B", draft: ModelFacts = DRAFT, **more: Any
) -> Case:
    """The plain case at gamma 0, else one with a draft model."""
    length = int(prompt.removeprefix("length-")) if prompt.startswith("length-") else None
    base = Case(
        suite=suite,
        target=target.ref,
        prompt=PromptRef(key=prompt, sha256="c" * 64, n_tokens=length, workload="prose" if length else prompt),
        n_predict=33,
        drafter=DrafterSpec(name="draft-model", draft=draft.ref) if gamma else DrafterSpec(),
        gamma=gamma,
    )
    return msgspec.structs.replace(base, **more)


class Loop(NamedTuple):
    """Times of a loop: T(k) = t_one + per_row (k - 1), and what drafting a token takes."""

    t_one_ms: float = 10.0
    per_row_ms: float = 1.0
    draft_ms: float = 1.0


LOOP = Loop()


def rounds(
    n_committed: int, gamma: int, alpha: float, seed: str, slow: float = 1.0, loop: Loop = LOOP
) -> tuple[Round, ...]:
    """Rounds until that many tokens are committed.

    Which output positions a draft gets right depends on the seed alone, as in greedy decoding.
    """
    rng = random.Random(seed)
    right = [rng.random() < alpha for _ in range(n_committed)]
    made = []
    while n_committed > 0:
        proposed = min(gamma, n_committed - 1)
        accepted = 0
        while accepted < proposed and right[n_committed - 1 - accepted]:
            accepted += 1
        made.append(
            Round(
                proposed=proposed,
                accepted=accepted,
                committed=accepted + 1,
                rows=1 + proposed,
                draft_ns=int(proposed * loop.draft_ms * MS * slow),
                verify_ns=int((loop.t_one_ms + loop.per_row_ms * proposed) * MS * slow),
                rollback_ns=int(0.1 * MS * slow) if proposed else 0,
                sample_ns=int(0.05 * MS * slow),
                other_ns=int(0.01 * MS * slow),
            )
        )
        n_committed -= accepted + 1
    return tuple(made)


def trial(
    of: Case,
    block: int,
    repeat: int,
    position: int,
    alpha: float = 0.5,
    noise: float = 0.0,
    loop: Loop = LOOP,
    **more: Any,
) -> Trial:
    """A valid trial of a case; the same block, repeat and case give the same trial again."""
    slow = 1.0 + random.Random(f"{of.id} {block} {repeat}").gauss(0, noise) if noise else 1.0
    done = rounds(of.n_predict - 1, of.gamma, alpha, f"{of.target.id} {of.prompt.key}", slow, loop)
    base = Trial(
        case_id=of.id,
        arm=of.arm,
        gamma=of.gamma,
        block=block,
        repeat=repeat,
        position=position,
        status=Status.VALID,
        started_at=f"2026-03-01T12:{repeat:02d}:{(7 * block + position) % 60:02d}.000+00:00",
        n_prompt=of.prompt.n_tokens or 20,
        tokens=tuple(range(of.n_predict)),
        prefill_ns=20 * MS,
        decode_ns=sum(r.wall_ns for r in done),
        rounds=done,
        losslessness=Losslessness(verdict="lossless"),
    )
    return msgspec.structs.replace(base, **more)


def lasting(trial: Trial, decode_ns: int) -> Trial:
    """The trial as if it had taken so long, each part of its rounds by the same factor."""
    factor = decode_ns / (trial.decode_ns or 1)
    parts = [name for name in Round.__struct_fields__ if name.endswith("_ns")]
    made = [
        msgspec.structs.replace(one, **{name: int(factor * getattr(one, name)) for name in parts})
        for one in trial.rounds
    ]  # fmt: skip
    rest = decode_ns - sum(one.wall_ns for one in made)
    made[-1] = msgspec.structs.replace(made[-1], other_ns=made[-1].other_ns + rest)
    return msgspec.structs.replace(trial, rounds=tuple(made), decode_ns=decode_ns)


def failed(of: Case, block: int, repeat: int = 0, reason: str = "the worker was killed") -> Trial:
    """A trial without numbers."""
    return Trial(
        case_id=of.id, arm=of.arm, gamma=of.gamma, block=block, repeat=repeat, position=0, status=Status.FAILED,
        started_at="2026-03-01T12:00:00.000+00:00", reason=reason,
    )  # fmt: skip


def write(
    path: Path,
    trials: list[tuple[Case, Trial]],
    environment: Environment = MACHINE,
    models: Iterable[ModelFacts] = (MOE, DENSE, DRAFT),
    **plan: Any,
) -> Path:
    """A run of suites with these trials in the database at `path`; runs of the same suites go on with one another."""
    suites = plan.get("suites")
    decides = SessionPlan(id=f"suites {suites}" if suites else "", pool="workload")
    with Store.open(path) as store:
        run = store.begin_run(environment, {"profile": "tiny", **as_stored(decides), **plan}, seed=1)
        store.add_models(models)
        store.add_cases(run, [each for each, _ in trials])
        store_trials(store, run, [each for _, each in trials])
        store.end_run(run)
    return path


def blocks(
    target: ModelFacts,
    suite: str = "B",
    *,
    alpha: float = 0.5,
    noise: float = 0.02,
    repeats: int = 3,
    prompts: tuple[str, ...] = PROMPTS,
    gammas: tuple[int, ...] = (4, 8, 16),
    **more: Any,
) -> list[tuple[Case, Trial]]:
    """AR and SD arms of each prompt and repeat, block by block."""
    made = []
    for repeat in range(repeats):
        for number, prompt in enumerate(prompts):
            arms = [case(target, prompt, gamma, suite, **more) for gamma in (0, *gammas)]
            block = 100 * repeat + number
            made += [(arm, trial(arm, block, repeat, i, alpha, noise)) for i, arm in enumerate(arms)]
    return made


def whole_study(path: Path, **more: Any) -> Path:
    """Suites A, B, C, D and F of a small family, with one failed and one invalid trial."""
    made: list[tuple[Case, Trial]] = []
    for suite, target in (("A", MOE), ("C", DENSE)):
        plain = [case(target, f"length-{n}", suite=suite) for n in (64, 256)]
        made += [(c, trial(c, 500 + i, r, 0, noise=0.02)) for r in range(3) for i, c in enumerate(plain)]
    made += blocks(MOE, "B", alpha=0.75)
    made += blocks(DENSE, "D", alpha=0.1)
    lengths = tuple(f"length-{n}" for n in (32, 64, 128, 256, 512, 1024))
    made += blocks(MOE, "F", alpha=0.5, prompts=lengths, gammas=(8,))
    lost = case(MOE, "factual", 4, suite="E")
    made.append((lost, failed(lost, 900, reason="llama_decode returned 1")))
    wrong = case(MOE, "code", 4, suite="E")
    reason = {
        "status": Status.INVALID,
        "reason": "the output differs",
        "losslessness": Losslessness(verdict="diverged"),
    }
    made.append((wrong, trial(wrong, 901, 0, 0, **reason)))
    return write(path, made, **more)


def as_measured(pairs: Iterable[tuple[Case, Trial]]) -> list[Measured]:
    """Trials as if the blocks that they name had been stored."""
    return [Measured(case, one, counts_of(one), one.block * 10**6 + one.repeat) for case, one in pairs]

"""A study database with trials of simulated honest loops, written through the real store."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from mlsd.analysis.results.paired_trials import PairedTrials
from mlsd.analysis.study import study as whole
from mlsd.records import (
    Case,
    DrafterSpec,
    Environment,
    ModelFacts,
    ModelRef,
    OptionValue,
    PromptRef,
    Round,
    Sampling,
    Trial,
)
from mlsd.store.store import Store
from mlsd.trials.sums import PARTS
from tests.analysis import studies

HOST = Environment(host="h", os="Linux", machine="x86_64", peak_bandwidth_gb_s=100.0)


@dataclass(frozen=True)
class Arm:
    """One drafter on one target; T(k) = t_one (1 + per_row (k - 1))."""

    target: str = "dense"
    drafter: str = "draft-model"
    draft: str | None = "small"
    alpha: float = 0.7
    draft_ms: float = 1.0  # a token
    t_one_ms: float = 10.0
    per_row: float = 0.02
    gammas: tuple[int, ...] = (2, 4, 8)
    temperature: float = 0.0
    options: dict[str, OptionValue] = field(default_factory=dict)  # of the drafter


FACTS = {
    "dense": ("qwen2", 1_000_000, 1_000_000, None, 1.0),
    "dense-big": ("qwen2", 4_000_000, 4_000_000, None, 1.0),
    "moe": ("qwen35moe", 8_000_000, 2_000_000, 16, 1.0),
    "moe-q4": ("qwen35moe", 8_000_000, 2_000_000, 16, 0.5),
    "falcon": ("falcon-h1", 1_000_000, 1_000_000, None, 1.0),
    "qwen": ("qwen35", 1_000_000, 1_000_000, None, 1.0),
    "small": ("qwen2", 100_000, 100_000, None, 1.0),
    "large": ("qwen2", 400_000, 400_000, None, 1.0),
}


@dataclass(frozen=True)
class Study:
    """Arms measured on the same prompts; every block has its AR arm."""

    arms: tuple[Arm, ...] = (Arm(),)
    prompts: tuple[str, ...] = ("factual", "code", "reasoning", "chinese")
    lengths: dict[str, int] = field(default_factory=dict)
    repeats: int = 3
    n_predict: int = 65
    noise: float = 0.01
    seed: int = 0


def write_study(path: Path, study: Study) -> Path:
    """Write the trials of a study."""
    rng = np.random.default_rng(study.seed)
    with Store.open(path) as store:
        run = store.begin_run(HOST, {}, 0)
        store.add_models(_facts(name) for name in FACTS)
        block = 0
        for arm in study.arms:
            for repeat in range(study.repeats):
                for prompt in study.prompts:
                    block += 1
                    made = [_trial(study, arm, prompt, gamma, rng) for gamma in (0, *arm.gammas)]
                    store.add_cases(run, [case for case, _ in made])
                    store.add(run, [replace(trial, block=block, repeat=repeat) for _, trial in made])
        store.end_run(run)
    return path


def read_study(path: Path) -> PairedTrials:
    """The pairs of a study, as the commands read them."""
    with Store.open(path, read_only=True) as store:
        return whole.read_study(store).paired


def _facts(name: str) -> ModelFacts:
    architecture, parameters, active, experts, bytes_a_weight = FACTS[name]
    return ModelFacts(
        ref=ModelRef(id=name, sha256=name * 8), architecture=architecture, n_layers=4, n_embd=64, n_experts=experts,
        n_experts_used=2 if experts else None, n_parameters=parameters, n_parameters_active=active,
        weight_bytes=int(parameters * bytes_a_weight), active_bytes=int(active * bytes_a_weight),
    )  # fmt: skip


def _trial(study: Study, arm: Arm, prompt: str, gamma: int, rng: np.random.Generator) -> tuple[Case, Trial]:
    draft = ModelRef(id=arm.draft, sha256=arm.draft * 8) if gamma and arm.draft else None
    case = Case(
        suite="B",
        target=ModelRef(id=arm.target, sha256=arm.target * 8),
        prompt=PromptRef(key=prompt, sha256=prompt),
        n_predict=study.n_predict,
        drafter=DrafterSpec(name=arm.drafter, draft=draft, options=arm.options) if gamma else DrafterSpec(),
        gamma=gamma,
        sampling=Sampling(temperature=arm.temperature),
    )
    # The output is greedy, so acceptance is the same in every repeat; times are not.
    tokens = np.random.default_rng([study.seed, gamma, sum(map(ord, prompt + arm.target + (arm.draft or "")))])
    speed = rng.lognormal(0, study.noise)
    rounds, left = list[Round](), study.n_predict - 1
    while left > 0:
        k = min(gamma, left - 1)
        accepted = 0
        while accepted < k and tokens.random() < arm.alpha:
            accepted += 1
        left -= accepted + 1
        verify = arm.t_one_ms * (1 + arm.per_row * k) * speed
        parts = zip(PARTS, (k * arm.draft_ms * speed, verify, 0.05 * (k > 0), 0.02, 0.01), strict=True)
        times = {name: int(1e6 * ms) for name, ms in parts}
        rounds.append(Round(proposed=k, accepted=accepted, committed=accepted + 1, rows=1 + k, **times))
    return case, replace(
        studies.trial(case, 0, 0, gamma),
        n_prompt=study.lengths.get(prompt, 32),
        decode_ns=sum(r.wall_ns for r in rounds),
        rounds=tuple(rounds),
    )

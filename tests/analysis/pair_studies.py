"""A study database of many drafters on many targets, whose loops are simulated as those of `studies`."""

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from mlsd.analysis.pairs import PairedTrials
from mlsd.analysis.study import study as whole
from mlsd.records import Case, DrafterSpec, Environment, ModelFacts, ModelRef, OptionValue, PromptRef
from mlsd.store.store import Store
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


def write_study(path: Path, study: Study) -> Path:
    """Write the trials of a study."""
    made = []
    for block, (arm, repeat, prompt) in enumerate(product(study.arms, range(study.repeats), study.prompts), 1):
        loop, noise = studies.Loop(arm.t_one_ms, arm.t_one_ms * arm.per_row, arm.draft_ms), study.noise
        for place, case in enumerate(_case(study, arm, prompt, gamma) for gamma in (0, *arm.gammas)):
            n_prompt = study.lengths.get(prompt, 32)
            one = studies.trial(case, block, repeat, place, arm.alpha, noise, loop, n_prompt=n_prompt)
            made.append((case, one))
    return studies.write(path, made, HOST, map(_facts, FACTS), profile=None)


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


def _case(study: Study, arm: Arm, prompt: str, gamma: int) -> Case:
    draft = ModelRef(id=arm.draft, sha256=arm.draft * 8) if gamma and arm.draft else None
    return Case(
        suite="B",
        target=ModelRef(id=arm.target, sha256=arm.target * 8),
        prompt=PromptRef(key=prompt, sha256=prompt),
        n_predict=study.n_predict,
        drafter=DrafterSpec(name=arm.drafter, draft=draft, options=arm.options) if gamma else DrafterSpec(),
        gamma=gamma,
    )

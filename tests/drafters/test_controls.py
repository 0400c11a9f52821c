"""The bounds that nobody can use: an oracle is right in every token, a random draft in none."""

from __future__ import annotations

import pytest

from mlsd.analysis.results.best_setting import best_settings
from mlsd.analysis.results.speedups import Speedup
from mlsd.drafters import METHODS
from mlsd.errors import UnsupportedError
from mlsd.measure.worker.conversation import PlainAnswers, read_prompt
from mlsd.planning.prompts import load_prompt
from mlsd.records import CONTROLS, EngineOptions, Sampling
from mlsd.stats import Interval
from mlsd.trials.decisions import Standing, effect_of
from tests.conftest import ARCHITECTURES
from tests.drafters.arena import CLOCK, Arena

N_PREDICT = 41


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("gamma", [1, 4])
def test_an_oracle_is_always_right(arena: Arena, architecture: str, gamma: int) -> None:
    prompt = arena.clear_prompt(architecture, 7, N_PREDICT)
    run = arena.run(architecture, "oracle", gamma, prompt, N_PREDICT)
    arena.assert_exact(architecture, prompt, run)
    assert all(proposed == accepted for proposed, accepted in run.counts)
    assert all(proposed == gamma for proposed, _ in run.counts[:-1])
    assert len(run.counts) == -(-(N_PREDICT - 1) // (gamma + 1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_random_draft_is_always_wrong(arena: Arena, architecture: str) -> None:
    prompt = arena.clear_prompt(architecture, 7, N_PREDICT)
    run = arena.run(architecture, "random", 4, prompt, N_PREDICT)
    arena.assert_exact(architecture, prompt, run)
    assert run.accepted == 0 and len(run.counts) == N_PREDICT - 1
    assert run.proposed == sum(min(4, N_PREDICT - 2 - done) for done in range(N_PREDICT - 1))


@pytest.mark.parametrize("name", CONTROLS)
def test_with_a_temperature_nobody_knows_what_comes(arena: Arena, name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} replays greedy output"):
        arena.run("llama", name, 2, (1, 2, 3), 8, sampling=Sampling(temperature=1.0))


def test_no_control_is_ever_recommended() -> None:
    assert set(CONTROLS) <= set(METHODS)

    def arm(drafter: str, value: float) -> Speedup:
        ratio = Interval(value=value, low=value - 0.01, high=value + 0.01, n=9)
        return Speedup(
            target="t", drafter=drafter, draft=None, gamma=4, options="", n_predict=64, suite=None, prompt=None,
            workload="code", comparable="", ratio=ratio, n_blocks=9, n_trials=9, n_valid=9, decode_tok_s=1.0,
            baseline_tok_s=1.0, acceptance_rate=1.0, mgl=1.0, invalid_reason=None,
            standing=Standing(name=drafter, ratio=ratio, effect=effect_of(ratio)),
        )  # fmt: skip

    (best,) = best_settings([arm("oracle", 3.0), arm("pld", 1.2), arm("random", 0.5)])
    assert best.arm is not None and best.arm.drafter == "pld" and best.n_settings == 1


def test_random_tokens_repeat_nothing_and_are_the_same_every_time(arena: Arena) -> None:
    prompt, model = load_prompt("random-48"), arena.model("llama")
    answers = PlainAnswers(model, EngineOptions(), 8, CLOCK)
    tokens, again = (read_prompt(model, prompt, answers).tokens for _ in range(2))
    assert tokens == again and len(tokens) == len(set(tokens)) == 48
    assert prompt.workload == "random" and prompt.ref.n_tokens == 48

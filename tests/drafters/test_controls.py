"""The controls that nobody can use; that they are always right and always wrong is in `test_exactness`."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.drafters import resolve_spec
from mlsd.drafters.oracle import accepted_lengths
from mlsd.errors import InputError, UnsupportedError
from mlsd.measure.worker.conversation import random_tokens
from mlsd.methods import of_kind
from mlsd.planning.prompts import load_prompt
from mlsd.planning.question import parse_drafter
from mlsd.records import DrafterSpec, Sampling
from mlsd.trials.acceptance_meanings import by_position
from mlsd.trials.on_or_off import answers
from mlsd.trials.rates import sums
from mlsd.trials.results import SessionPlan, arm_results
from tests.analysis.studies import DENSE, as_measured, blocks, lasting
from tests.drafters.arena import N_RECORDED, Arena


@pytest.mark.parametrize("name", of_kind("control"))
def test_with_a_temperature_nobody_knows_what_comes(arena: Arena, name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} replays greedy output"):
        arena.run("llama", name, 2, (1, 2, 3), 8, sampling=Sampling(temperature=1.0))


def test_no_control_is_ever_recommended() -> None:
    measured = [(of, trial) for of, trial in blocks(DENSE, "bench", prompts=("code",), gammas=(4,), alpha=0.9)]
    bound = [(of, trial) for of, trial in measured if of.gamma]
    for of, trial in bound:
        oracle = msgspec.structs.replace(of, drafter=DrafterSpec(name="oracle"))
        fast = lasting(trial, 3 * (trial.decode_ns or 0) // 4)  # its drafts cost nothing; still less than its MGL
        measured.append((oracle, msgspec.structs.replace(fast, case_id=oracle.id)))
    results = {result.arm.method: result for result in arm_results(as_measured(measured), SessionPlan())}
    assert results["oracle"].effect == "faster" and results["oracle"].decision == "a control, cannot be used"
    (answer,) = answers(results.values())
    assert answer.best is results["draft-model"] and len(answer.arms) == 1 and answer.use == "on"


def test_random_tokens_repeat_nothing_and_are_the_same_every_time(arena: Arena) -> None:
    prompt, model = load_prompt("random-48"), arena.model("llama")
    tokens, again = (random_tokens(model, prompt.n_tokens or 0) for _ in range(2))
    assert tokens == again and len(tokens) == len(set(tokens)) == 48
    assert prompt.random and prompt.workload == "random" and prompt.ref.n_tokens == 48


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 8), st.integers(0, 9), st.integers(1, 40))
def test_a_schedule_accepts_at_each_position_as_often_as_told(
    rates: list[float], longest: int, seed: int, n_sixteens: int
) -> None:
    """To one round in every sixteen, and to few over any number of them."""
    n_rounds = 16 * n_sixteens
    lengths = list(itertools.islice(accepted_lengths(rates, longest, np.random.default_rng(seed)), n_rounds))
    survival = 1.0
    for position in range(longest):
        survival *= rates[min(position, len(rates) - 1)]
        counted = [sum(n > position for n in lengths[i : i + 16]) for i in range(0, n_rounds, 16)]
        assert all(abs(n - 16 * survival) < 1 + 1e-9 for n in counted)
        assert abs(sum(counted) - n_rounds * survival) < 1 + 3 * np.log2(1 + n_sixteens)


@pytest.mark.parametrize("text", ["oracle:accept=1.2", "oracle:accept=0.5/x", "oracle:propose=0", "oracle:accept=-1"])
def test_what_is_no_chance_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="oracle"):
        resolve_spec(parse_drafter(text))


@pytest.mark.parametrize("draft", [None, "llama"])
def test_a_control_is_right_as_often_as_told_at_the_cost_of_its_draft(arena: Arena, draft: str | None) -> None:
    """Its output is that of plain decoding, its rounds accept what was scheduled, and a draft's passes run."""
    run = arena.run("llama", "oracle:accept=0.9/0.6", 4, (1, 2, 3), N_RECORDED, draft=draft)
    ends = sums(run.generation.rounds)
    first, second, *_ = by_position([(ends, 1)])
    assert first.rate.value == pytest.approx(0.9, abs=0.08) and second.rate.value == pytest.approx(0.6, abs=0.12)
    assert run.verdict is not None and run.verdict.verdict == "lossless"
    assert run.stats.get("draft_steps", 0) >= (ends.proposed - 4 if draft else 0)

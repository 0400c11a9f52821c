"""The bounds that nobody can use; that they are always right and always wrong is in `test_exactness`."""

import msgspec
import pytest

from mlsd.drafters import METHODS
from mlsd.errors import UnsupportedError
from mlsd.measure.worker.conversation import random_tokens
from mlsd.planning.prompts import load_prompt
from mlsd.records import CONTROLS, DrafterSpec, Sampling
from mlsd.trials.on_or_off import answers
from mlsd.trials.results import SessionPlan, arm_results
from tests.analysis.studies import DENSE, as_measured, blocks, lasting
from tests.drafters.arena import Arena


@pytest.mark.parametrize("name", CONTROLS)
def test_with_a_temperature_nobody_knows_what_comes(arena: Arena, name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} replays greedy output"):
        arena.run("llama", name, 2, (1, 2, 3), 8, sampling=Sampling(temperature=1.0))


def test_no_control_is_ever_recommended() -> None:
    assert set(CONTROLS) <= set(METHODS)

    made = [(of, trial) for of, trial in blocks(DENSE, "bench", prompts=("code",), gammas=(4,), alpha=0.9)]
    bound = [(of, trial) for of, trial in made if of.gamma]
    for of, trial in bound:
        oracle = msgspec.structs.replace(of, drafter=DrafterSpec(name="oracle"))
        fast = lasting(trial, 3 * (trial.decode_ns or 0) // 4)  # its drafts cost nothing; still less than its MGL
        made.append((oracle, msgspec.structs.replace(fast, case_id=oracle.id)))
    found = {one.arm.method: one for one in arm_results(as_measured(made), SessionPlan())}
    assert found["oracle"].effect == "faster" and found["oracle"].decision == "a control, cannot be used"
    (answer,) = answers(found.values())
    assert answer.best is found["draft-model"] and len(answer.arms) == 1 and answer.use == "on"


def test_random_tokens_repeat_nothing_and_are_the_same_every_time(arena: Arena) -> None:
    prompt, model = load_prompt("random-48"), arena.model("llama")
    tokens, again = (random_tokens(model, prompt.n_tokens or 0) for _ in range(2))
    assert tokens == again and len(tokens) == len(set(tokens)) == 48
    assert prompt.random and prompt.workload == "random" and prompt.ref.n_tokens == 48

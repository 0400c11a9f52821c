"""No mutated input of any kind ends in a traceback, a hang, an orphan, a file outside, or a number that is not so."""

from pathlib import Path

import pytest

from tests.hostile import mutate
from tests.hostile.attack import KINDS, Range, attack

pytestmark = [pytest.mark.hostile, pytest.mark.heavy]

# As many as fit under three minutes together on two cores; benchmarks/hostile.py tries ten thousand.
CASES = {
    "gguf in llama.cpp": 8, "weights": 4, "database": 16, "toml": 50, "options": 40, "jsonl": 16,
    "server": 50, "environment": 16,
}  # fmt: skip
DEFAULT_CASES = 40


@pytest.fixture(scope="module")
def shooting_range(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("range")


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_inputs_end_in_an_answer_or_a_clear_refusal(kind: str, shooting_range: Path) -> None:
    outcome = attack(kind, range(CASES.get(kind, DEFAULT_CASES)), Range(shooting_range))
    assert not outcome.faults, "\n".join(outcome.faults)
    assert outcome.codes[2], f"nothing was refused: {outcome.codes}"


def test_a_model_whose_weights_are_left_alone_is_measured(
    shooting_range: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate, "of_weights", lambda path, _: path.read_bytes())
    assert "valid trials" in attack("weights", range(1), Range(shooting_range)).faults[0]


def test_the_same_seed_is_the_same_attack(shooting_range: Path) -> None:
    first, again = (attack("csv", range(3), Range(shooting_range)) for _ in range(2))
    assert first == again

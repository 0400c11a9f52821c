"""The example of docs/add-a-method.md is a method: it drafts what it says, and its output is plain decoding's."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mlsd import drafters
from mlsd.engine.verify import Verification
from mlsd.errors import InputError
from mlsd.records import DrafterSpec
from tests.conftest import ARCHITECTURES
from tests.drafters.arena import Arena, prompt_of

EXAMPLE = Path(__file__).parents[2] / "docs" / "new_method.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mlsd.drafters.bigram", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def entered(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, example.__name__, example)
    monkeypatch.setitem(drafters.METHODS, "bigram", "bigram")


def test_it_copies_what_followed_the_newest_token(example: ModuleType) -> None:
    drafter = example.Bigram(example.Options(longest=3))
    drafter.begin([5, 6, 7, 8, 9, 5], np.random.default_rng(0))
    assert drafter.propose(8).tokens == (6, 7, 8)
    assert drafter.propose(2).tokens == (6, 7)
    drafter.observe(Verification(accepted=1, committed=(6, 4)))
    assert drafter.propose(8).tokens == ()  # 4 is new
    drafter.observe(Verification(accepted=0, committed=(5,)))
    assert drafter.propose(8).tokens == (6, 4, 5)  # where 5 occurred last


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_its_output_equals_plain_decoding(arena: Arena, architecture: str) -> None:
    runs = ((prompt, arena.run(architecture, "bigram", 4, prompt, 40)) for prompt in map(prompt_of, range(9)))
    prompt, run = next((prompt, run) for prompt, run in runs if run.proposed > run.accepted)
    arena.assert_exact(architecture, prompt, run)


def test_its_options_explain_themselves() -> None:
    method = drafters.find_method("bigram")
    assert [option.name for option in method.info().options] == ["longest", "adaptive"]
    with pytest.raises(InputError, match="longest"):
        method.read(DrafterSpec(name="bigram", options={"longest": 0}))

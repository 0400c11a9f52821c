"""A round stays straight: few functions of few files run in it."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import pytest

import mlsd
from mlsd.clock import MonotonicClock
from mlsd.drafters.chain import Chain
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.folders import asset_path

ROOT = Path(mlsd.__file__).parent
PROMPT = tuple(range(11, 23))


@contextmanager
def counted() -> Iterator[Counter[CodeType]]:
    """Calls of every Python function of mlsd in between."""
    calls: Counter[CodeType] = Counter()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and ROOT in Path(frame.f_code.co_filename).parents:
            calls[frame.f_code] += 1

    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@contextmanager
def writer(gamma: int) -> Iterator[Callable[[int], int]]:
    """Writes so many tokens and returns in how many rounds; the draft has a recurrent state, so a ladder."""
    clock, options = MonotonicClock(), ContextOptions(n_ctx=256, n_threads=1, max_outputs=gamma + 1)
    with ExitStack() as stack:

        def open_(name: str, strategy: str, **change: int) -> Any:
            model = stack.enter_context(LlamaModel(asset_path(f"tiny/{name}.gguf")))
            changed = msgspec.structs.replace(rollback_options(strategy, options, gamma), **change)
            context = stack.enter_context(open_context(model, changed))
            return context, make_rollback(strategy, context)

        target, rollback = open_("tiny-dense", "snapshots")
        drafter: Drafter = NoDrafter()
        if gamma:
            memory = OwnMemory(*open_("tiny-draft", "ladder", max_outputs=1), clock)
            drafter = stack.enter_context(closing(ChainDrafter(memory, Chain(clock))))

        def write(n_predict: int) -> int:
            limits = GenerationLimits(n_predict=n_predict, gamma=gamma)
            return len(generate(target, drafter, rollback, PROMPT, limits, clock).rounds)

        yield write


@pytest.mark.parametrize(("gamma", "most_files", "most_functions"), [(0, 5, 12), (4, 6, 28)])
def test_few_functions_of_few_files_run_in_a_round(gamma: int, most_files: int, most_functions: int) -> None:
    """In the rounds that a longer output takes more; a plain token takes a dozen calls."""
    with writer(gamma) as write:
        with counted() as few:
            n_few = write(8)
        with counted() as many:
            n_many = write(40)
    calls = many - few
    assert gamma or calls.total() <= most_functions * (n_many - n_few)
    assert len({code.co_filename for code in calls}) <= most_files
    assert len(calls) <= most_functions

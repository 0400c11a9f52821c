"""Every native handle is freed: counted one by one, and seen in the memory of the process."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt
import pytest

from mlsd.clock import MonotonicClock
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import library
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import ReadTap, TappedContext
from mlsd.engine.rollback_choice import RollbackUse, check_rollback
from mlsd.errors import EngineError, ModelFileError
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from tests.measure.kill_script import make_jobs

OPTIONS = ContextOptions(n_ctx=256, n_threads=1, n_batch=64, n_ubatch=64)
# What is opened with the first function is closed with the second.
PAIRS = {
    "llama_model_load_from_file": "llama_model_free",
    "llama_init_from_model": "llama_free",
    "llama_sampler_chain_init": "llama_sampler_free",
}
LEFT_OPEN = """
import sys
from pathlib import Path
from mlsd.engine.llama import native, open, context
from mlsd.engine.llama.model import LlamaModel

library = native.library()

def told(name):
    real = getattr(library, name)
    setattr(library, name, lambda handle: (print(name, flush=True), real(handle)))

told("llama_free"), told("llama_model_free")
model = LlamaModel(Path(sys.argv[1]))
context = open.open_context(model, context.ContextOptions(n_ctx=256, n_threads=1))
context.decode((1, 2, 3))
if sys.argv[2] == "closed":
    context.close(), model.close()
elif sys.argv[2] == "dropped":
    del context
print("end", flush=True)
"""
LEAK_BYTES = 100_000  # a context of this test has ten million


@pytest.fixture
def still_open(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many handles of each kind are open; kinds by the function that opens them."""
    native, count = library(), Counter[str]()

    def counted(function: Callable[..., Any], kind: str, step: int) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            if step < 0 or result:  # a null pointer opens nothing
                count[kind] += step
            return result

        return call

    for opens, closes in PAIRS.items():
        monkeypatch.setattr(native, opens, counted(getattr(native, opens), opens, +1))
        monkeypatch.setattr(native, closes, counted(getattr(native, closes), opens, -1))
    return count


def test_a_session_frees_its_handles_once_even_when_closed_twice(tiny: Path, still_open: Counter[str]) -> None:
    model = LlamaModel(tiny / "qwen35.gguf")
    context = open_context(model, OPTIONS)
    assert all(still_open[kind] == 1 for kind in PAIRS)
    for _ in range(2):
        context.close()
        model.close()
    assert not any(still_open.values())


def test_the_probe_leaves_nothing_open(tiny: Path, still_open: Counter[str]) -> None:
    with LlamaModel(tiny / "falcon-h1.gguf") as model:
        use = RollbackUse(strategy="checkpoint", role="target", gamma=4)
        assert check_rollback(partial(open_context, model), OPTIONS, use).exact
        assert still_open["llama_init_from_model"] == 0
    assert not any(still_open.values())


@pytest.mark.parametrize(
    "broken",
    ["llama_init_from_model", "llama_get_memory", "llama_sampler_chain_init", "llama_sampler_init_greedy"],
)
def test_a_session_that_fails_half_way_leaves_nothing_open(
    tiny: Path, still_open: Counter[str], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    with LlamaModel(tiny / "llama.gguf") as model:
        monkeypatch.setattr(library(), broken, lambda *_: None)
        with pytest.raises(EngineError):
            open_context(model, OPTIONS)
        assert +still_open == Counter(llama_model_load_from_file=1)


def test_a_saved_state_that_stays_in_its_borrowed_sequence_is_an_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one saved there would be of two states."""
    options = msgspec.structs.replace(OPTIONS, n_saved_states=1, saved_on_device=True)
    with LlamaModel(tiny / "qwen35.gguf") as model, open_context(model, options) as context:
        context.decode((1, 2, 3))
        context.save_state(0)
        monkeypatch.setattr(library(), "llama_memory_seq_rm", lambda *_: False)
        with pytest.raises(EngineError, match="cannot forget positions"):
            context.save_state(0)


def test_a_model_that_fails_half_way_is_freed(
    tiny: Path, still_open: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(library(), "llama_vocab_n_tokens", fail)
    with pytest.raises(RuntimeError, match="broken"):
        LlamaModel(tiny / "llama.gguf")
    assert not any(still_open.values())


def test_an_arm_whose_draft_is_missing_closes_its_target_context_at_once(
    tiny: Path, tmp_path: Path, still_open: Counter[str]
) -> None:
    job = make_jobs(tiny, repeats=1)[1]
    missing = tuple(msgspec.structs.replace(model, path=str(tmp_path / "gone.gguf")) for model in job.models)
    with Arms(msgspec.structs.replace(job, models=missing), MonotonicClock(), ProbeCache(tmp_path)) as arms:
        case = next(slot.case for slot in job.slots if slot.case.arm == "sd")
        for _ in range(2):
            with pytest.raises(ModelFileError):
                arms.check(case)
        assert still_open["llama_init_from_model"] == 0
    assert not any(still_open.values())


OPENINGS = """
import sys
from pathlib import Path
import numpy as np, psutil
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context

options = ContextOptions(n_ctx=16_384, n_threads=1, n_batch=64, n_ubatch=64, max_outputs=17)
sizes = []
for _ in range(16):
    with LlamaModel(Path(sys.argv[1])) as model, open_context(model, options) as context:
        context.decode([1, 2, 3])
        context.save_state()
    sizes.append(psutil.Process().memory_info().rss)
# The allocator may take another few megabytes once; a leak takes some at every opening.
print(np.median(np.diff(sizes[5:])))
"""


@pytest.mark.heavy
def test_memory_does_not_grow_over_many_openings(tiny: Path) -> None:
    """In a process whose allocator no other test has set."""
    command = [sys.executable, "-c", OPENINGS, str(tiny / "qwen35moe.gguf")]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert float(done.stdout) < LEAK_BYTES


def test_an_error_in_a_callback_reaches_the_caller(tiny: Path) -> None:
    def take(name: str, values: npt.NDArray[Any]) -> None:
        raise ZeroDivisionError(name)

    with (
        LlamaModel(tiny / "llama.gguf") as model,
        TappedContext(model, OPTIONS) as context,
        context.tapped(ReadTap(lambda name: name == "l_out-1", take)),
        pytest.raises(ZeroDivisionError, match="l_out-1"),
    ):
        context.decode([1, 2, 3])


@pytest.mark.parametrize("how", ["left open", "dropped", "closed"])
def test_what_is_left_open_at_exit_is_closed_before_the_librarys_own_end(tiny: Path, how: str) -> None:
    """Metal's clean-up aborts the process where a model or a context still holds memory."""
    command = [sys.executable, "-c", LEFT_OPEN, str(tiny / "qwen35.gguf"), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    freed = ["llama_free", "llama_model_free"]
    assert (done.returncode, done.stdout.split()) == (0, [*freed, "end"] if how == "closed" else ["end", *freed])

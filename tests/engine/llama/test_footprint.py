"""Memory that llama.cpp says it would take is the memory it takes."""

import shutil
from pathlib import Path

import msgspec
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.footprint import allocated_bytes, footprints
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LOG
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import rollback_options
from mlsd.gguf_tools.header import Header
from mlsd.units import MIB
from tests.conftest import ARCHITECTURES

GAMMAS = (1, 4, 16, 32)
CONTEXTS = (512, 4_096, 32_768)


def arms(snapshots: bool) -> list[ContextOptions]:
    """Contexts as a suite opens them for its arms."""
    return [
        ContextOptions(n_ctx=n_ctx, n_threads=1, max_outputs=gamma + 1, n_snapshots=gamma if snapshots else 0)
        for gamma in GAMMAS
        for n_ctx in CONTEXTS
    ]


def taken_bytes(model: LlamaModel, options: ContextOptions) -> float:
    with LOG.everything() as lines, open_context(model, options):
        pass
    return allocated_bytes(lines)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_predicted_memory_is_what_llama_cpp_allocates(tiny: Path, name: str) -> None:
    path = tiny / f"{name}.gguf"
    wanted = arms(snapshots=name.startswith("qwen35"))
    with LlamaModel(path, simulated=True) as model:
        predicted = footprints(model, wanted)
    with LlamaModel(path) as model:
        for options, footprint in zip(wanted, predicted, strict=True):
            assert footprint.total_bytes == pytest.approx(taken_bytes(model, options), rel=0.05), options


@pytest.mark.parametrize("strategy", ["ladder", "device-ladder"])
def test_a_rung_of_a_ladder_takes_the_states_of_one_sequence(tiny: Path, strategy: str) -> None:
    options = rollback_options(strategy, ContextOptions(n_ctx=512, n_threads=1), 5)
    with LlamaModel(tiny / "mamba2.gguf", simulated=True) as model:
        (found,) = footprints(model, [options])
    on_host = msgspec.structs.replace(options, saved_on_device=False)
    with LlamaModel(tiny / "mamba2.gguf") as model, open_context(model, on_host) as context:
        context.decode((1, 2, 3))
        for turn in range(5):
            context.save_state(turn)
        taken = sum(saved.n_bytes for saved in context._states.values())
    assert options.n_all_sequences == (6 if strategy == "device-ladder" else 1)
    assert 5 * found.states_bytes / options.n_all_sequences == pytest.approx(taken, rel=0.05, abs=5 * 0.01 * MIB)


def test_a_header_over_an_empty_file_gives_the_sizes_of_the_whole_model(tiny: Path, tmp_path: Path) -> None:
    whole, hollow = tiny / "qwen35moe.gguf", tmp_path / "hollow.gguf"
    shutil.copy(whole, hollow)
    with hollow.open("r+b") as file:
        file.truncate(Header(whole.read_bytes()).data_start)
        file.truncate(whole.stat().st_size)
    wanted = arms(snapshots=True)[:4]
    with LlamaModel(whole, simulated=True) as a, LlamaModel(hollow, simulated=True) as b:
        assert footprints(a, wanted) == footprints(b, wanted)

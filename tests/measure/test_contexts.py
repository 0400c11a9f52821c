"""Contexts that cannot be are refused with what to give instead: from the header alone, or by llama.cpp's own plan."""

from pathlib import Path

import pytest

from mlsd.errors import InputError
from mlsd.gguf_tools.source import Source
from mlsd.measure.messages import ModelJob
from mlsd.measure.process import check_context
from mlsd.measure.worker.footprints import check_memory
from mlsd.planning.job import ModelFile
from mlsd.records import EngineOptions, ModelRef


def job(path: Path, n_ctx: int | None) -> ModelJob:
    return ModelJob(model=ModelFile(ref=ModelRef(id="m"), path=str(path)), engine=EngineOptions(n_ctx=n_ctx))


def test_a_context_beyond_the_trained_one_is_refused_with_the_longest_there_is(tiny: Path) -> None:
    path = tiny / "llama.gguf"
    trained = Source(path).count("context_length", None)
    check_context(job(path, trained))
    with pytest.raises(InputError, match=r"2,000,000,000 positions is beyond the 4,096") as error:
        check_context(job(path, 2_000_000_000))
    assert f"--n-ctx {trained}" in error.value.hint


def test_a_context_beyond_the_memory_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        total = 100_000

    check_memory(job(tiny / "llama.gguf", 4096))
    monkeypatch.setattr("mlsd.hardware.budget.psutil.virtual_memory", Memory)
    with pytest.raises(InputError, match=r"needs .* MB; this machine has 100\.00 kB"):
        check_memory(job(tiny / "llama.gguf", 4096))


def test_no_file_is_read_when_no_context_was_asked_for(tmp_path: Path) -> None:
    for check in (check_context, check_memory):
        check(job(tmp_path / "none.gguf", None))
        check(EngineOptions(n_ctx=10**12))

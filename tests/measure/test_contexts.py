"""Contexts that cannot be are refused from the header alone, with what to give instead."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mlsd.errors import InputError
from mlsd.gguf_tools.shapes import FULL
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.synth import from_shape, write_hollow
from mlsd.measure.contexts import check_contexts, context_bytes
from mlsd.measure.messages import InfoJob, ProbeJob
from mlsd.planning.job import ModelFile
from mlsd.records import EngineOptions, ModelRef


def job(path: Path, n_ctx: int | None) -> ProbeJob:
    return ProbeJob(model=ModelFile(ref=ModelRef(id="m"), path=str(path)), engine=EngineOptions(n_ctx=n_ctx))


def test_a_context_beyond_the_trained_one_is_refused_with_the_longest_there_is(tiny: Path) -> None:
    path = tiny / "llama.gguf"
    trained = Source(path).count("context_length", None)
    check_contexts(job(path, trained))
    with pytest.raises(InputError, match=r"2,000,000,000 positions is beyond the 4,096") as error:
        check_contexts(job(path, 2_000_000_000))
    assert f"--n-ctx {trained}" in error.value.hint


def test_a_context_beyond_the_memory_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        total = 100_000

    monkeypatch.setattr("mlsd.hardware.budget.psutil.virtual_memory", Memory)
    with pytest.raises(InputError, match=r"this machine has 100\.00 kB"):
        check_contexts(job(tiny / "llama.gguf", 4096))


def test_no_file_is_read_when_no_context_was_asked_for(tmp_path: Path) -> None:
    check_contexts(job(tmp_path / "none.gguf", None))
    check_contexts(InfoJob(engine=EngineOptions(n_ctx=10**12)))


def test_memory_of_a_position_is_that_of_the_published_models(tmp_path: Path) -> None:
    """Keys and values of one position, in bytes, by the models' public configurations."""
    path = tmp_path / "m.gguf"
    for name, layers, n_bytes in (("qwen3.5-0.8b", 24, 12_288), ("smollm2-135m", 30, 23_040)):
        tiny_vocabulary = msgspec.structs.replace(FULL[name], n_vocab=512, n_ff=64)
        assert tiny_vocabulary.n_layers == layers
        write_hollow(path, from_shape(tiny_vocabulary, quant="F16"))
        assert context_bytes(Source(path), 1) == n_bytes

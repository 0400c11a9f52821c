"""What a context is made for, and a device that fails without a word: only the log of llama.cpp tells."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LOG, library
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import make_rollback
from mlsd.errors import EngineError, NativeError

OPTIONS = ContextOptions(n_ctx=256, n_threads=1, max_outputs=5)
# What llama.cpp's ggml-metal-context.m writes when a command buffer fails; its caller is not told.
METAL_FAILURE = b"ggml_metal_synchronize: error: command buffer 0 failed with status 5\n"
_ERROR = 4


def fail_device_at(monkeypatch: pytest.MonkeyPatch, n_pass: int) -> None:
    """The device fails at the `n_pass`-th synchronisation from now on, as Metal does: an error in the log, no code."""
    synchronize: Callable[[Any], None] = library().llama_synchronize
    count = 0

    def fail(handle: Any) -> None:
        nonlocal count
        count += 1
        synchronize(handle)
        if count == n_pass:
            LOG.write(_ERROR, METAL_FAILURE)

    monkeypatch.setattr(library(), "llama_synchronize", fail)


def compute_mib(path: Path, options: ContextOptions) -> float:
    with LlamaModel(path) as model, LOG.everything() as lines, open_context(model, options):
        pass
    return sum(float(size) for size in re.findall(r"compute buffer size = +([\d.]+) MiB", "".join(lines)))


def test_a_context_pays_for_the_rows_it_was_made_for_and_not_for_a_whole_batch(
    tiny: Path,
) -> None:
    few = compute_mib(tiny / "qwen35.gguf", OPTIONS)
    whole_batch = msgspec.structs.replace(OPTIONS, max_outputs=OPTIONS.n_ubatch)
    assert 0 < few < compute_mib(tiny / "qwen35.gguf", whole_batch)


def test_more_rows_than_a_context_was_made_for_are_refused_before_llama_cpp_ends_the_process(tiny: Path) -> None:
    with LlamaModel(tiny / "llama.gguf") as model, open_context(model, OPTIONS) as context:
        context.decode(range(5), n_outputs=5)
        with pytest.raises(EngineError, match="6 output rows were asked of a context made for 5"):
            context.decode(range(6), n_outputs=6)


@pytest.mark.parametrize("n_pass", [1, 3])
def test_a_pass_that_the_device_failed_in_is_an_error_though_llama_cpp_returns_success(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, n_pass: int
) -> None:
    with LlamaModel(tiny / "llama.gguf") as model, open_context(model, OPTIONS) as context:
        fail_device_at(monkeypatch, n_pass)
        for _ in range(n_pass - 1):
            context.decode([1, 2])
        with pytest.raises(NativeError, match="command buffer 0 failed with status 5"):
            context.decode([1, 2])
        context.clear()
        context.decode([1, 2])  # told once, where it happened


def test_warnings_in_the_log_fail_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library(), "llama_synchronize", lambda _: LOG.write(3, b"a warning\n"))
    with LlamaModel(tiny / "llama.gguf") as model, open_context(model, OPTIONS) as context:
        context.decode([1, 2])


def test_snapshots_reach_into_the_last_micro_batch_only(tiny: Path) -> None:
    options = ContextOptions(n_ctx=256, n_threads=1, n_batch=64, n_ubatch=16, n_snapshots=4)
    with LlamaModel(tiny / "qwen35.gguf") as model, open_context(model, options) as context:
        for n_tokens, width in ((16, 16), (17, 1), (64, 16), (67, 3)):
            context.clear()
            context.decode(tuple(range(n_tokens)))
            assert context.last_width == width
            with pytest.raises(EngineError, match="positions back"):
                make_rollback("snapshots", context).rewind(n_tokens - min(width, 5), ())

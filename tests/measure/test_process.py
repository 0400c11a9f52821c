"""What goes to a worker is checked before it starts, and what it says of an error reaches its caller whole."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd import errors
from mlsd.errors import InputError, MlsdError, NativeError
from mlsd.gguf_tools.source import Source
from mlsd.measure.messages import Event, Refused
from mlsd.measure.process import check_context
from mlsd.measure.worker.footprints import check_memory
from mlsd.planning.job import ModelFile
from mlsd.records import EngineOptions, ModelRef

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MlsdError)]


def received(error: MlsdError) -> MlsdError:
    event = msgspec.json.decode(msgspec.json.encode(Refused.of(error)), type=Event)
    assert isinstance(event, Refused)
    return event.error()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_worker_arrives_with_all_of_its_fields(kind: type[MlsdError]) -> None:
    own = {"code": -3, "log": ("no memory", "giving up")} if issubclass(kind, NativeError) else {}
    error = kind("The call failed.", hint="Try again.", **own)
    arrived = received(error)
    assert type(arrived) is kind
    assert vars(arrived) == vars(error)
    assert str(arrived) == str(error)


# --- contexts that cannot be, by the header alone or by llama.cpp's own plan --------------------------------------


def given(path: Path, n_ctx: int | None) -> dict[str, Any]:
    return {"model": ModelFile(ref=ModelRef(id="m"), path=str(path)), "engine": EngineOptions(n_ctx=n_ctx)}


def test_a_context_beyond_the_trained_one_is_refused_with_the_longest_there_is(tiny: Path) -> None:
    path = tiny / "llama.gguf"
    trained = Source(path).count("context_length", None)
    check_context(given(path, trained))
    with pytest.raises(InputError, match=r"2,000,000,000 positions is beyond the 4,096") as error:
        check_context(given(path, 2_000_000_000))
    assert f"--n-ctx {trained}" in error.value.hint


def test_a_context_beyond_the_memory_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        total = 100_000

    check_memory(given(tiny / "llama.gguf", 4096))
    monkeypatch.setattr("psutil.virtual_memory", Memory)
    with pytest.raises(InputError, match=r"needs .* MB; this machine has 100\.00 kB"):
        check_memory(given(tiny / "llama.gguf", 4096))


def test_no_file_is_read_when_no_context_was_asked_for(tmp_path: Path) -> None:
    for check in (check_context, check_memory):
        check(given(tmp_path / "none.gguf", None))
        check({"engine": EngineOptions(n_ctx=10**12)})

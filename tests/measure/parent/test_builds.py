"""A build is found by what names it, told from others by its files, and refused in words where it is none."""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from mlsd.engine.llama.build.loaded import IDENTITY_VARIABLE, LIBRARY, plain_name
from mlsd.engine.llama.build.prebuilt import libraries_of, pins
from mlsd.engine.llama.native import LIBRARIES_VARIABLE
from mlsd.errors import InputError, NativeError
from mlsd.hashes import digest
from mlsd.measure.parent.builds import find_build, installed
from mlsd.measure.process import run_info
from mlsd.records import EngineOptions
from tests.native_shim import copy_of_installed, copy_of_package, library


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_installed(tmp_path_factory.mktemp("copy") / "lib")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with another package `llama_cpp`: the installed one with a line more."""
    folder = tmp_path_factory.mktemp("environments") / "older"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    with (copy_of_package(packages / "llama_cpp") / "llama_cpp.py").open("a") as file:
        file.write("\n# another release\n")
    return folder


def test_the_same_files_elsewhere_are_the_same_build(tmp_path: Path) -> None:
    copy = copy_of_installed(tmp_path / "lib")
    assert find_build(str(copy)).fingerprint == find_build(".").fingerprint
    with library(copy, "llama").open("ab") as file:
        file.write(b"one byte more")
    assert find_build(str(copy)).fingerprint != find_build(".").fingerprint


def test_a_relative_path_means_the_same_files(copy: Path, environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy.parent)
    variables = find_build("lib").variables()
    assert variables[LIBRARIES_VARIABLE] == str(copy)
    assert find_build(str(copy)).fingerprint in variables[IDENTITY_VARIABLE]
    packages = next(environment.glob("lib/python*/site-packages"))
    monkeypatch.chdir(packages.parent)
    build = find_build("site-packages")
    folder = Path(build.variables()["PYTHONPATH"].split(os.pathsep)[0])
    assert (folder / "llama_cpp" / "llama_cpp.py").is_file()  # it was a link that led nowhere
    assert build.package == str((packages / "llama_cpp").resolve())


def test_libraries_that_lie_apart_are_put_side_by_side(copy: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    whole = [path for path in copy.iterdir() if not path.is_symlink() and LIBRARY.fullmatch(path.name)]
    for path in whole:
        place = prefix / ("lib" if "llama" in path.name else "libexec") / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    found = Path(find_build(str(prefix)).variables()[LIBRARIES_VARIABLE])
    assert {path.name for path in found.iterdir()} == {plain_name("llama"), *(path.name for path in whole)}
    assert find_build(str(prefix)).fingerprint == find_build(".").fingerprint


@pytest.mark.slow
def test_homebrew_keeps_backends_in_the_folder_of_ggml_and_links_none_of_them(copy: Path, tmp_path: Path) -> None:
    """`lib` of both formulas is linked into one; GGML_BACKEND_DIR is ggml's `libexec` (its formula, v0.23.0)."""
    prefix = tmp_path / "homebrew"
    (prefix / "lib").mkdir(parents=True)
    for path in sorted(copy.iterdir()):
        if path.is_symlink() or not LIBRARY.fullmatch(path.name):
            continue
        is_llama, is_core = "llama" in path.name, re.match(r"libggml(-base)?\.", path.name)
        keg = prefix / "Cellar" / ("llama.cpp/11524" if is_llama else "ggml/0.23.0")
        real = keg / ("lib" if is_llama or is_core else "libexec") / path.name
        real.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, real)
        if real.parent.name == "lib":
            (prefix / "lib" / path.name).symlink_to(real)
    if not run_info(EngineOptions(n_threads=1)).build.startswith("b11524"):
        pytest.skip("needs libraries with backends of their own (make setup, without BUILD=source)")
    (prefix / "lib" / plain_name("llama")).symlink_to(next((prefix / "lib").glob("libllama.*")).name)
    build = find_build(str(prefix))
    assert build.fingerprint == find_build(".").fingerprint
    info = run_info(EngineOptions(n_threads=1), variables=build.variables())
    assert "CPU" in {device.kind for device in info.devices} and info.build.startswith("b11524")


@pytest.mark.heavy
def test_a_worker_that_loads_another_build_measures_nothing(
    environment: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineOptions(n_threads=1)
    assert run_info(engine, variables=find_build(str(environment)).variables()).binding_version
    strayed = find_build(str(environment)).variables() | {"PYTHONPATH": ""}  # the package that is installed here
    with pytest.raises(NativeError, match="was asked for, but this process loaded") as refused:
        run_info(engine, variables=strayed)
    assert str(installed().resolve()) in refused.value.message
    elsewhere = find_build(str(copy)).variables() | {LIBRARIES_VARIABLE: str(libraries_of(installed()))}
    with pytest.raises(NativeError, match="was asked for, but this process loaded"):
        run_info(engine, variables=elsewhere)


def test_of_another_environment_only_the_package_is_imported(environment: Path) -> None:
    for name in (environment, environment / "bin" / "python"):
        build = find_build(str(name))
        assert build.label == "older"
        variables = build.variables()
        folder = Path(variables["PYTHONPATH"].split(os.pathsep)[0])
        assert [path.name for path in folder.iterdir()] == ["llama_cpp"]
        assert (folder / "llama_cpp").resolve() == next(environment.glob("lib/python*/site-packages/llama_cpp"))
        assert LIBRARIES_VARIABLE not in variables


@pytest.mark.slow
def test_a_wheel_is_unpacked_for_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "llama_cpp_python-0.3.35-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in copy_of_package(tmp_path / "llama_cpp").rglob("*"):
            if path.suffix == ".py" or path.name.startswith(("libllama.", "libggml")):
                archive.write(path, path.relative_to(tmp_path))
    build = find_build(str(wheel))
    assert build.fingerprint == find_build(".").fingerprint
    assert find_build(str(wheel)).package == build.package
    (tmp_path / "cache" / "builds" / "wheel-0.4194305").mkdir()  # of a process that was killed: no system counts so far
    code = f"from mlsd.measure.parent.builds import find_build; print(find_build({str(wheel)!r}).package)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "wheel-" in done.stdout and done.stdout.strip() != build.package
    assert [path.name.split(".")[1] for path in (tmp_path / "cache" / "builds").glob("wheel-*")] == [str(os.getpid())]


def test_a_trusted_wheel_of_another_system_is_known_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "any.whl"
    wheel.write_bytes(b"wheel")
    pin = msgspec.structs.replace(pins()[1], wheels={"darwin-arm64": digest(wheel)})
    monkeypatch.setattr("mlsd.measure.parent.builds.pins", lambda: (pin,))
    monkeypatch.setattr("mlsd.measure.parent.builds.this_system", lambda: "linux-x86_64")
    with pytest.raises(InputError, match=r"0\.11739 \(b11739\), unchanged, and made for darwin-arm64"):
        find_build(str(wheel))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "holds no libllama"),
        (lambda path: path.write_text("text"), "cannot be run"),
        (
            lambda path: (path.write_text("#!/bin/sh\nexit 3\n"), path.chmod(0o755)),
            "not a Python interpreter with llama",
        ),
        (lambda path: path.symlink_to(path), "is not a build"),  # a loop
        (lambda path: (path.mkdir(), (path / "libllama.so").symlink_to(path / "libllama.so")), "is not a build"),
    ],
)
def test_what_is_no_build_is_refused(tmp_path: Path, make: object, reason: str) -> None:
    make(path := tmp_path / "thing")  # type: ignore[operator]
    with pytest.raises(InputError, match=reason) as refused:
        find_build(str(path))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec yes", "does not run: .*more than 1,048,576 bytes"),
        ("sleep 77777 & exec sleep 77777", "does not run: .*not done after"),
        ("printf '\\377\\376 no text'", "not a Python interpreter with llama"),
    ],
)
def test_an_interpreter_that_answers_nothing_of_use_is_ended_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr("mlsd.measure.parent.builds._ANSWER_S", 0.5 if "sleep" in script else 30)
    strange = tmp_path / "python"
    strange.write_text(f"#!/bin/sh\n{script}\n")
    strange.chmod(0o755)
    with pytest.raises(InputError, match=reason):
        find_build(str(strange))


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a hole"])
def test_a_library_that_never_ends_is_not_read(tmp_path: Path, kind: str) -> None:
    strange = tmp_path / plain_name("llama")
    os.mkfifo(strange) if kind == "a pipe" else strange.touch()
    if kind == "a device":
        strange.unlink()
        strange.symlink_to("/dev/zero")
    if kind == "a hole":
        os.truncate(strange, 1 << 40)
    with pytest.raises(InputError, match=r"not a regular file|more than 4 GiB|no libllama"):
        find_build(str(tmp_path))


_WHOLE = ("llama_cpp/__init__.py", "llama_cpp/llama_cpp.py")
# What a wheel holds beside a whole package, or in place of one; a link left out would be missed in a traceback, or the
# libraries installed here would answer for it.
WHEELS = {
    "no archive": ((), "cannot be unpacked"),
    "of something else": (("other/llama_cpp.py",), "is not a wheel"),
    "no __init__.py": (_WHOLE[1:], "is not a wheel"),
    "deep": ((*_WHOLE, "llama_cpp/" + "d/" * 3000 + "x.py"), "cannot be unpacked"),
    "a name that no file can have": ((*_WHOLE, "llama_cpp/" + "n" * 300), "cannot be unpacked"),
    "a library that is a link": ((*_WHOLE, "llama_cpp/lib/libllama.so"), "a link or a path that leads out"),
    "a module that is a link": ((*_WHOLE, "llama_cpp/_ctypes_extensions.py"), "a link or a path that leads out"),
    "a path out of the package": ((*_WHOLE, "llama_cpp/../lib/libllama.so"), "a link or a path that leads out"),
    "a path from the root": ((*_WHOLE, "/lib/libllama.so"), "a link or a path that leads out"),
}


@pytest.mark.parametrize("kind", WHEELS)
def test_a_strange_wheel_is_refused_without_a_trace(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "cache"))
    wheel, (names, reason) = tmp_path / "llama_cpp_python-1.0-py3-none-any.whl", WHEELS[kind]
    if not names:
        wheel.write_bytes(b"no archive")
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in names:
                entry = zipfile.ZipInfo(name)
                if kind.endswith("is a link") and name == names[-1]:
                    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(entry, "")
    with pytest.raises(InputError, match=reason):
        find_build(str(wheel))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not list((tmp_path / "cache").glob("builds/*"))

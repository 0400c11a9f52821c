"""What keeps mlsd from being installed on a machine, and how llama.cpp gets there: compiled, or by others.

`python mlsd/hardware/setup.py check` says what is wrong, with whatever Python there is and before any package; so this
file imports none. `... install` puts llama.cpp into the environment whose Python runs it: libraries that others
compiled where `prebuilt.toml` trusts some for this machine, by their hash, else compiled here. `BUILD=source` in the
environment compiles always, `BUILD=prebuilt` never.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BINDING = "llama-cpp-python==0.3.36"
PINS = Path(__file__).parent.parent / "engine" / "llama" / "build" / "prebuilt.toml"
# The bindings are Python alone; their build asks for a compiler all the same, and then uses none.
_BINDING_ALONE = (
    *("-DLLAMA_BUILD=OFF", "-DLLAVA_BUILD=OFF"),
    *(f"-DCMAKE_{name}_COMPILER_FORCED=ON -DCMAKE_{name}_COMPILER={sys.executable}" for name in ("C", "CXX")),
)
_OLDEST, _NEWEST = (3, 11), (3, 14)


def problems(
    version: tuple[int, int],
    system: str,
    machine: str,
    translated: str | None,
    tools: str | None,
    *,
    has_compiler: bool = True,
) -> list[str]:
    """Every reason, with what to do; `translated` and `tools` are what sysctl and xcode-select printed on a Mac."""
    found = []
    if not _OLDEST <= version <= _NEWEST:
        known = f"{_OLDEST[0]}.{_OLDEST[1]} to {_NEWEST[0]}.{_NEWEST[1]}"
        found.append(
            f"This is Python {version[0]}.{version[1]}; numpy and scipy have wheels for {known}. Install one of those "
            "(brew install python@3.12), then: make PYTHON=python3.12"
        )
    is_mac = system == "Darwin"
    if is_mac and machine == "x86_64" and (translated or "").strip().endswith("1"):
        found.append(
            "This Python was made for Intel and runs under Rosetta, where llama.cpp has no Metal. Install one for "
            "Apple silicon, in a terminal that does not run under Rosetta: /opt/homebrew/bin/brew install python@3.12"
        )
    if is_mac and not (tools or "").strip().startswith("/"):
        found.append("The command line tools are missing, and llama.cpp needs their compiler: xcode-select --install")
    if not is_mac and not has_compiler:
        found.append("llama.cpp needs a C and C++ compiler: apt-get install build-essential")
    return found


def _ask(*command: str) -> str | None:
    path = shutil.which(command[0])
    if path is None:
        return None
    return subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False).stdout


def here() -> list[str]:
    """What is wrong with this machine and this Python."""
    if requirement() is not None and os.environ.get("BUILD") != "source":  # nothing is compiled
        return [said for said in _problems() if "compiler" not in said]
    return _problems()


def _problems() -> list[str]:
    return problems(
        sys.version_info[:2],
        platform.system(),
        platform.machine(),
        _ask("sysctl", "-n", "sysctl.proc_translated"),
        _ask("xcode-select", "-p"),
        has_compiler=any(map(shutil.which, ("cc", "c++"))),
    )


def requirement(system: str | None = None, machine: str | None = None) -> str | None:
    """What pip installs in place of compiling, with the hash that it must have; None: nothing is trusted for here."""
    if sys.version_info[:2] < _OLDEST:  # no tomllib, and told before
        return None
    import tomllib

    place = f"{system or sys.platform}-{machine or platform.machine()}"
    for pin in tomllib.loads(PINS.read_text(encoding="utf-8"))["prebuilt"]:
        if sha256 := pin["wheels"].get(place):
            return f"{pin['package']}=={pin['version']} --hash=sha256:{sha256}"
    return None


def _pip(*arguments: str, **variables: str) -> bool:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--no-compile",
        *arguments,
    ]
    return subprocess.run(command, check=False, env={**os.environ, **variables}).returncode == 0


def install() -> str:
    """Put llama.cpp into this environment; how, in words. Raises: SystemExit when it cannot be."""
    wanted, pinned = os.environ.get("BUILD", ""), requirement()
    if wanted != "source" and pinned is not None:
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "requirements.txt"
            listed.write_text(pinned + "\n", encoding="utf-8")
            # A wheel of the bindings alone must not be kept by pip: it would be taken for a compiled one.
            if _pip("--no-deps", "--require-hashes", "--requirement", str(listed)) and _pip(
                "--no-deps", "--no-cache-dir", BINDING, CMAKE_ARGS=" ".join(_BINDING_ALONE)
            ):
                return f"llama.cpp: {pinned.split()[0]}, which others compiled; `make setup BUILD=source` compiles."
    if wanted == "prebuilt":
        raise SystemExit("No libraries that others compiled are trusted for this machine, or they cannot be fetched.")
    found = importlib.util.find_spec("llama_cpp")
    if found is not None and found.origin is not None and (Path(found.origin).parent / "lib").is_dir():
        return "llama.cpp: compiled here before."
    if not _pip(*(["--force-reinstall", "--no-deps"] if found else []), BINDING):
        raise SystemExit("llama.cpp cannot be compiled; see above.")
    return "llama.cpp: compiled here."


if __name__ == "__main__":
    if sys.argv[1:] == ["install"]:
        sys.stdout.write(install() + "\n")
    elif sys.argv[1:] == ["requirement"]:
        sys.stdout.write((requirement() or "") + "\n")
    else:
        raise SystemExit("\n".join(here()) or 0)

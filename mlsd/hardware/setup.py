"""What keeps mlsd from being installed on a machine, and what to do: asked before anything is built.

`python mlsd/hardware/setup.py` runs with whatever Python there is, before any package; so it imports none.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys

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
    return problems(
        sys.version_info[:2],
        platform.system(),
        platform.machine(),
        _ask("sysctl", "-n", "sysctl.proc_translated"),
        _ask("xcode-select", "-p"),
        has_compiler=any(map(shutil.which, ("cc", "c++"))),
    )


if __name__ == "__main__":
    raise SystemExit("\n".join(here()) or 0)

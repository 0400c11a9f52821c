"""What tests need that a machine may lack: one table, skipped by name, required where a variable says so.

`MLSD_TESTS_REQUIRE=chromium,sshd` makes the lack of these a failure; `.ci/run` names there what it has installed.
Whatever is skipped stands by name, with the way to get it, in the last lines of a run.
"""

import importlib.util
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

import pytest

VARIABLE = "MLSD_TESTS_REQUIRE"
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin")


@dataclass(frozen=True)
class Need:
    """`find` gives the program or the value, or None where this machine lacks it; `remedy` says how to get it."""

    find: Callable[[], str | None]
    remedy: str


def _program(*names: str) -> Callable[[], str | None]:
    return lambda: next((path for name in names if (path := shutil.which(name))), None)


def _sshd() -> str | None:
    folders = os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_FOLDERS))
    return shutil.which("sshd", path=folders) if shutil.which("ssh") else None


def _linux_compiler() -> str | None:
    return shutil.which("cc") if sys.platform == "linux" else None


def _llama_server() -> str | None:
    from tools.llama_server import built

    path = built()
    return None if path is None else str(path)


def _package(name: str) -> Callable[[], str | None]:
    return lambda: name if importlib.util.find_spec(name) else None


def _variable(name: str) -> Callable[[], str | None]:
    return lambda: os.environ.get(name)


NEEDS = {
    "chromium": Need(_program("chromium", "chromium-browser", "google-chrome"), "Debian: apt install chromium"),
    "sshd": Need(_sshd, "Debian: apt install openssh-server"),
    "zsh": Need(_program("zsh"), "Debian: apt install zsh"),
    "cc": Need(_program("cc"), "a C compiler; Debian: apt install gcc"),
    "linux-cc": Need(_linux_compiler, "a C compiler on Linux; Debian: apt install gcc"),
    "llama-server": Need(_llama_server, "python -m tools.llama_server builds it in some minutes; needs cmake"),
    "llama-cpp-python[server]": Need(_package("fastapi"), "make setup installs it"),
    "mlx-lm": Need(_package("mlx_lm"), "make setup installs it"),
    "device": Need(_variable("MLSD_DEVICE_LIBRARIES"), "python -m tools.native_builds --rpc --out DIR"),
    "other-build": Need(_variable("MLSD_OTHER_BUILD"), "set MLSD_OTHER_BUILD to another llama.cpp's environment"),
    "build-without-vectors": Need(_variable("MLSD_NO_VECTORS"), "python -m tools.native_builds --build no-avx"),
}


def needed(name: str) -> str:
    """The program or value of that name; a machine without it skips the test, or fails it where it is required."""
    value = NEEDS[name].find()
    if value is None:
        lack(name, NEEDS[name].remedy)
    return value


def lack(name: str, reason: str) -> NoReturn:
    """Skip for want of `name`, or fail where it is required; raises either way."""
    message = f"NOT TESTED for want of {name}: {reason}"
    if name in os.environ.get(VARIABLE, "").split(","):
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)


def summary(reasons: Iterable[str]) -> list[str]:
    """A line for each thing that was lacking, with the number of tests skipped for want of it."""
    lacking = Counter(match[0] for reason in reasons if (match := re.search(r"NOT TESTED for want of .*", reason)))
    return [f"{message} ({count} skipped)" for message, count in sorted(lacking.items())]

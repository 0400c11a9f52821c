"""Libraries that others compiled: which packages are trusted, and where one is installed here.

`prebuilt.toml` is the one list; `make setup` installs a wheel of it by its hash. No other package is ever taken by
itself; a user can still name any build with `--build`, which the gate decides about.
"""

import functools
import importlib.util
import platform
import re
import sys
from pathlib import Path

import msgspec

from mlsd.engine.llama.build.loaded import LIBRARY, plain_name, side_by_side
from mlsd.errors import NativeError
from mlsd.records import Record


class Prebuilt(Record, frozen=True, kw_only=True):
    """One package of the index that ships libllama."""

    package: str
    version: str
    module: str  # the folder that it installs
    build: int  # of llama.cpp
    commit: str
    licence: str
    origin: str
    patches: str  # what its makers changed in llama.cpp
    wheels: dict[str, str]  # system-machine -> sha256


class _Pins(Record, frozen=True, kw_only=True):
    prebuilt: tuple[Prebuilt, ...]


A_MAC = "darwin-arm64"


@functools.cache
def pins() -> tuple[Prebuilt, ...]:
    """Every package that is trusted."""
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Pins).prebuilt


def this_system() -> str:
    """What wheels are made for, of this machine."""
    return f"{sys.platform}-{platform.machine()}"


def installed_build(system: str) -> int:
    """The number of the build that set-up installs on a machine of `system-machine`; 0: the bindings' own, compiled."""
    return next((pin.build for pin in pins() if system in pin.wheels), 0)


def libraries_of(bindings: Path) -> Path:
    """The folder of libraries behind bindings: a trusted package's, side by side, where they ship none."""
    shipped = bindings / "lib"
    if (shipped / plain_name("llama")).exists():
        return shipped
    for pin in pins():
        module = _module(pin)
        if module is None or this_system() not in pin.wheels:
            continue
        files = [path for part in ("lib", "bin", "") for path in sorted((module / part).glob("*")) if _is_needed(path)]
        if not any(path.name.startswith("libllama.") for path in files):
            raise NativeError(
                f"The libllama of {pin.package} is missing in {module}.",
                hint=f"Reinstall it: pip install --force-reinstall {pin.package}=={pin.version}; or compile: "
                "make setup BUILD=source.",
            )
        return side_by_side(files, module)
    return shipped


def _module(pin: Prebuilt) -> Path | None:
    spec = importlib.util.find_spec(pin.module)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _is_needed(path: Path) -> bool:
    return LIBRARY.fullmatch(path.name) is not None or path.name.startswith("libgomp")


def installed_program(name: str) -> str | None:
    """The path of a program (``llama-server``) that a trusted package brings; None where none does."""
    for pin in pins():
        module = _module(pin)
        if module is not None and Path(name).name == name and (module / "bin" / name).is_file():
            return str(module / "bin" / name)
    return None


def build_number(commit: str, library: str = "") -> int | None:
    """The number of a build that is known by its commit, or by where Homebrew keeps its libllama."""
    if cellar := re.search(r"/Cellar/llama\.cpp/(\d+)(_\d+)?/", library):
        return int(cellar.group(1))
    short = commit.partition("-")[0].partition("+")[0]
    return next((pin.build for pin in pins() if len(short) >= 7 and pin.commit.startswith(short)), None)

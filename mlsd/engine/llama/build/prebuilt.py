"""Libraries that others compiled: which ones are trusted, by the hash of every file, and where one is installed here.

`prebuilt.toml` is the one list. A file that is not on it, or not as it is on it, is never taken by itself; a user can
still name any build with `--build`, which the gate decides about.
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
    libraries: dict[str, dict[str, str]]  # system-machine -> path in the module -> sha256


class _Pins(Record, frozen=True, kw_only=True):
    prebuilt: tuple[Prebuilt, ...]


A_MAC = "darwin-arm64"


@functools.cache
def pins() -> tuple[Prebuilt, ...]:
    """Every package that is trusted."""
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Pins).prebuilt


def installed_build(place: str) -> int:
    """The number of the build that set-up installs on a machine of `system-machine`; 0: the bindings' own, compiled."""
    return next((pin.build for pin in pins() if place in pin.wheels), 0)


class Libraries(Record, frozen=True, kw_only=True):
    """The libraries behind bindings."""

    folder: Path  # all of them under the names that the bindings look for
    files: dict[str, str | None]  # SHA-256 by real path; None: nobody stated it


def libraries_of(bindings: Path) -> Libraries:
    """The libraries behind bindings: a trusted package's (by hashes, read by `check_content`) where they ship none."""
    own = bindings / "lib"
    if not (own / plain_name("llama")).exists():
        for pin in pins():
            spec = importlib.util.find_spec(pin.module)
            hashes = pin.libraries.get(f"{sys.platform}-{platform.machine()}")
            if spec is None or spec.origin is None or hashes is None:
                continue
            place = Path(spec.origin).parent
            files: dict[str, str | None] = {str((place / name).resolve()): sha for name, sha in hashes.items()}
            if missing := [path for path in files if not Path(path).is_file()]:
                raise NativeError(
                    f"{', '.join(missing)} of {pin.package} is missing.",
                    hint=f"Reinstall it: pip install --force-reinstall {pin.package}=={pin.version}; or compile: "
                    "make setup BUILD=source.",
                )
            return Libraries(folder=side_by_side((place / name for name in hashes), place), files=files)
    return Libraries(folder=own, files=files_of(own))


def files_of(folder: Path) -> dict[str, str | None]:
    """The libraries of llama.cpp in a folder that somebody named."""
    return {str(path.resolve()): None for path in sorted(folder.glob("*")) if LIBRARY.fullmatch(path.name)}


def installed_program(name: str) -> str | None:
    """The path of a program (``llama-server``) that a trusted package brings; None where none does."""
    for pin in pins():
        spec = importlib.util.find_spec(pin.module)
        if spec is not None and spec.origin is not None and Path(name).name == name:
            program = Path(spec.origin).parent / "bin" / name
            if program.is_file():
                return str(program)
    return None


def build_number(commit: str, library: str = "") -> int | None:
    """The number of a build that is known by its commit, or by where Homebrew keeps its libllama."""
    if cellar := re.search(r"/Cellar/llama\.cpp/(\d+)(_\d+)?/", library):
        return int(cellar.group(1))
    known = {pin.commit: pin.build for pin in pins()}
    short = commit.partition("-")[0].partition("+")[0]
    return next((number for whole, number in known.items() if len(short) >= 7 and whole.startswith(short)), None)

"""Libraries that others compiled: which ones are trusted, by the hash of every file, and where one is installed here.

`prebuilt.toml` is the one list. A file that is not on it, or not as it is on it, is never taken by itself; a user can
still name any build with `--build`, which the gate decides about.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
import re
import sys
from pathlib import Path

import msgspec

from mlsd.engine.llama.build.place import plain_name, side_by_side
from mlsd.errors import NativeError
from mlsd.hashes import file_sha256
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


@functools.cache
def pins() -> tuple[Prebuilt, ...]:
    """Every package that is trusted."""
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Pins).prebuilt


def prebuilt_folder(bindings: Path) -> Path | None:
    """The libraries behind bindings that ship none; None: they ship their own, or nothing trusted is installed.

    Raises: NativeError for files that are not those that are trusted.
    """
    if (bindings / "lib" / plain_name("llama")).exists():
        return None
    for pin in pins():
        spec = importlib.util.find_spec(pin.module)
        hashes = pin.libraries.get(f"{sys.platform}-{platform.machine()}")
        if spec is None or spec.origin is None or hashes is None:
            continue
        files = {Path(spec.origin).parent / name: sha256 for name, sha256 in hashes.items()}
        if wrong := [path.name for path, sha256 in files.items() if not path.is_file() or file_sha256(path) != sha256]:
            raise NativeError(
                f"{', '.join(wrong)} of {pin.package} is not the file that mlsd trusts.",
                hint=f"Install it anew: pip install --force-reinstall {pin.package}=={pin.version}; or compile: "
                "make setup BUILD=source.",
            )
        return side_by_side(list(files), Path(spec.origin).parent)
    return None


def build_number(commit: str, library: str = "") -> int | None:
    """The number of a build that is known by its commit, or by where Homebrew keeps its libllama."""
    if cellar := re.search(r"/Cellar/llama\.cpp/(\d+)(_\d+)?/", library):
        return int(cellar.group(1))
    known = {pin.commit: pin.build for pin in pins()}
    short = commit.partition("-")[0].partition("+")[0]
    return next((number for whole, number in known.items() if len(short) >= 7 and whole.startswith(short)), None)

"""Which files of a build a process has really loaded, and whether they are those that were asked for."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import msgspec

from mlsd.errors import NativeError
from mlsd.records import Record

IDENTITY_VARIABLE = "MLSD_BUILD_IDENTITY"  # a worker's environment: the `Identity` of the build that it is to load
LIBRARY = re.compile(r"(lib)?(llama|ggml[\w-]*?)(\.\d+)*\.(so|dylib|dll)(\.\d+)*")


class Identity(Record, frozen=True, kw_only=True):
    """The files of a build: what a process may load of llama.cpp."""

    name: str  # as it was given
    fingerprint: str  # of bindings and libraries: equal for the same files, wherever they lie
    package: str  # the folder `llama_cpp`
    files: dict[str, tuple[int, int]]  # libraries by their real path: bytes, time of modification in ns


class Loaded(Record, frozen=True, kw_only=True):
    """What a process has loaded."""

    package: str
    libraries: tuple[str, ...]  # real paths


def stamp(path: Path) -> tuple[int, int]:
    """What changes when a file is written."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def asked() -> Identity | None:
    """The build that this process was told to load; None: whichever is installed."""
    text = os.environ.get(IDENTITY_VARIABLE)
    return msgspec.json.decode(text, type=Identity) if text else None


def loaded(package: str) -> Loaded:
    """The libraries of llama.cpp in this process, behind the bindings of `package`."""
    paths = {os.path.realpath(path) for path in _images() if LIBRARY.fullmatch(Path(path).name)}
    return Loaded(package=os.path.realpath(package), libraries=tuple(sorted(paths)))


def require(found: Loaded, identity: Identity) -> None:
    """Refuse to go on with another build than the one that was asked for. Raises: NativeError."""
    wrong = [path for path in found.libraries if identity.files.get(path) != _stamp(path)]
    if found.package != os.path.realpath(identity.package):
        wrong.append(found.package)
    if not any("llama" in Path(path).name for path in found.libraries):
        wrong.append("no libllama that can be seen")
    if wrong:
        raise NativeError(
            f"Build {identity.name} was asked for, but this process loaded {', '.join(wrong)}.",
            hint="Nothing is measured under another build's name. Look for LD_LIBRARY_PATH, DYLD_LIBRARY_PATH and "
            "LD_PRELOAD, and for files that were replaced since.",
        )


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        return stamp(Path(path))
    except OSError:
        return None


def _images() -> list[str]:
    """The paths of everything that is mapped into this process as code."""
    if sys.platform == "darwin":
        system = ctypes.CDLL(None)
        system._dyld_get_image_name.restype = ctypes.c_char_p
        return [os.fsdecode(system._dyld_get_image_name(i)) for i in range(system._dyld_image_count())]
    if sys.platform == "win32":
        import psutil

        return [mapped.path for mapped in psutil.Process().memory_maps()]
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6]

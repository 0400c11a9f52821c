"""Which files of a build a process may load, known by content, and which it really has loaded, read back by inode."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from mlsd.errors import NativeError
from mlsd.records import Record

IDENTITY_VARIABLE = "MLSD_BUILD_IDENTITY"  # a worker's environment: the `Identity` of the build that it is to load
LIBRARY = re.compile(r"(lib)?(llama|ggml[\w-]*?)(\.\d+)*\.(so|dylib|dll)(\.\d+)*")
_HINT = (
    "Nothing is measured under another build's name. Look for LD_LIBRARY_PATH, DYLD_LIBRARY_PATH and LD_PRELOAD, and "
    "for files that were replaced since; a package that was changed is installed anew with pip's --force-reinstall."
)
Inode = tuple[str, str]  # device and inode, as the system writes them where it says what is mapped


class Identity(Record, frozen=True, kw_only=True):
    """The files of a build: what a process may load of llama.cpp."""

    name: str  # as it was given
    fingerprint: str  # of bindings and libraries: equal for the same files, wherever they lie
    package: str  # the folder `llama_cpp`
    files: dict[str, str]  # SHA-256 of libraries by their real path


class LoadedLibraries(Record, frozen=True, kw_only=True):
    """What a process has loaded."""

    package: str
    libraries: tuple[str, ...]  # real paths


def required_identity() -> Identity | None:
    """The build that this process was told to load; None: whichever is installed. Raises: NativeError."""
    if not (text := os.environ.get(IDENTITY_VARIABLE)):
        return None
    try:
        return msgspec.json.decode(text, type=Identity)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NativeError(
            f"{IDENTITY_VARIABLE} does not name a build: {error}.",
            hint="mlsd sets it for its own processes: unset it, and name a build with --build.",
        ) from error


def check_content(files: Mapping[str, str | None]) -> frozenset[Inode]:
    """The inodes of files, read before any is loaded. Raises: NativeError for another SHA-256 (None: not known)."""
    inodes, wrong = set(), []
    for path, sha256 in files.items():
        try:
            with Path(path).open("rb") as file:
                if not (status := os.fstat(file.fileno())).st_size:
                    continue  # none that could be loaded
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
                        wrong.append(path)
                    # What says what is mapped names devices otherwise than `stat` on some file systems.
                    inodes.add(_inodes()[path] if sys.platform == "linux" else _inode(status))
        except (OSError, KeyError):  # gone, or replaced in between
            wrong.append(path)
    if wrong:
        raise NativeError(f"{', '.join(wrong)} is not the file that is trusted: its content changed.", hint=_HINT)
    return frozenset(inodes)


def loaded(package: str) -> LoadedLibraries:
    """The libraries of llama.cpp in this process, behind the bindings of `package`."""
    return LoadedLibraries(package=os.path.realpath(package), libraries=tuple(sorted(_libraries(_inodes()))))


def require(package: str, known: frozenset[Inode], identity: Identity | None) -> None:
    """Refuse libraries that were not looked at, and another build than was asked for. Raises: NativeError."""
    inodes = _inodes()
    libraries = _libraries(inodes)
    wrong = sorted(path for path in libraries if inodes[path] not in known)
    if identity is not None and os.path.realpath(package) != os.path.realpath(identity.package):
        wrong.append(os.path.realpath(package))
    if not any("llama" in Path(path).name for path in libraries):
        wrong.append("no visible libllama")
    if wrong:
        name = "The installed build" if identity is None else f"Build {identity.name}"
        raise NativeError(f"{name} was asked for, but this process loaded {', '.join(wrong)}.", hint=_HINT)


def _libraries(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if LIBRARY.fullmatch(Path(path.removesuffix(" (deleted)")).name)]


def _inodes() -> dict[str, Inode]:
    """The inode of everything that is mapped into this process as code, by its real path."""
    if sys.platform == "linux":
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        fields = (line.split(maxsplit=5) for line in lines)
        return {field[5]: (field[3], field[4]) for field in fields if len(field) == 6}
    system = ctypes.CDLL(None)
    system._dyld_get_image_name.restype = ctypes.c_char_p
    images = [os.fsdecode(system._dyld_get_image_name(i)) for i in range(system._dyld_image_count())]
    paths = {Path(image).resolve() for image in images}
    return {str(path): _inode(path.stat()) for path in paths if path.exists()}


def _inode(status: os.stat_result) -> Inode:
    return str(status.st_dev), str(status.st_ino)

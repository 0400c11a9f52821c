"""Which files of a build a process may load, known by content, and which it really has loaded, read back by inode.

Bindings want all libraries side by side, libllama under its name without a version.
"""

import atexit
import contextlib
import ctypes
import hashlib
import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import psutil

from mlsd.errors import NativeError
from mlsd.folders import cache_dir, unwritable
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
    inodes, unexpected = set(), []
    for path, sha256 in files.items():
        try:
            with Path(path).open("rb") as file:
                if not (status := os.fstat(file.fileno())).st_size:
                    continue  # none that could be loaded
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
                        unexpected.append(path)
                    # What says what is mapped names devices otherwise than `stat` on some file systems.
                    inodes.add(_inodes()[path] if sys.platform == "linux" else _inode(status))
        except (OSError, KeyError):  # gone, or replaced in between
            unexpected.append(path)
    if unexpected:
        raise NativeError(f"{', '.join(unexpected)} is not the file that is trusted: its content changed.", hint=_HINT)
    return frozenset(inodes)


def loaded(package: str) -> LoadedLibraries:
    """The libraries of llama.cpp in this process, behind the bindings of `package`."""
    return LoadedLibraries(package=os.path.realpath(package), libraries=tuple(sorted(_libraries(_inodes()))))


def require(package: str, known: frozenset[Inode], identity: Identity | None) -> None:
    """Refuse libraries that were not looked at, and another build than was asked for. Raises: NativeError."""
    inodes = _inodes()
    libraries = _libraries(inodes)
    unexpected = sorted(path for path in libraries if inodes[path] not in known)
    if identity is not None and os.path.realpath(package) != os.path.realpath(identity.package):
        unexpected.append(os.path.realpath(package))
    if not any("llama" in Path(path).name for path in libraries):
        unexpected.append("no visible libllama")
    if unexpected:
        name = "The installed build" if identity is None else f"Build {identity.name}"
        raise NativeError(f"{name} was asked for, but this process loaded {', '.join(unexpected)}.", hint=_HINT)


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


def plain_name(stem: str) -> str:
    """The name by which the bindings look for a library."""
    return f"lib{stem}.dylib" if sys.platform == "darwin" else f"lib{stem}.so"


def side_by_side(files: Iterable[Path], source: Path) -> Path:
    """Links to them in one folder of the cache, and nothing else in it."""
    links: dict[str, Path] = {}
    for path in files:
        links.setdefault(path.name, path.resolve())  # the first of two of a name
    if llama := next((name for name in sorted(links) if _is_llama(name)), None):
        links.setdefault(plain_name("llama"), Path(llama))
    return linked(f"{source}{sorted(links.items())}", links)


def linked(key: str, links: dict[str, Path]) -> Path:
    """A folder of the cache that holds these links: a stranger's file beside one could be loaded with it."""
    folder = cache_dir() / "builds" / hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name not in links or not path.is_symlink() or path.readlink() != links[path.name]:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        for name, target in links.items():
            with contextlib.suppress(FileExistsError):
                (folder / name).symlink_to(target)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def name_plainly(folder: Path) -> None:
    """Give libllama the name without a version, by which the bindings look for it."""
    plain = folder / plain_name("llama")
    found = [path for path in sorted(folder.iterdir()) if _is_llama(path.name)]
    if found and not plain.exists():
        plain.symlink_to(found[0].name)


def _is_llama(name: str) -> bool:
    return re.match(r"(lib)?llama\.", name) is not None


@contextlib.contextmanager
def made_for_this_process(name: str) -> Iterator[Path]:
    """A folder of the cache that goes when this process ends; also removes what killed processes left."""
    builds = cache_dir() / "builds"
    for left in builds.glob("wheel-*.[0-9]*"):
        if not psutil.pid_exists(int(left.suffix[1:])):
            shutil.rmtree(left, ignore_errors=True)
    folder = builds / f"{name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

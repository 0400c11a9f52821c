"""Which build of llama.cpp a process is to load, and which it has loaded: known by the paths of its libraries.

Bindings want all libraries side by side, libllama under its name without a version.
"""

import atexit
import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from mlsd.errors import NativeError
from mlsd.folders import cache_dir, unwritable
from mlsd.records import Record

IDENTITY_VARIABLE = "MLSD_BUILD_IDENTITY"  # a worker's environment: the `Identity` of the build that it is to load
LIBRARY = re.compile(r"(lib)?(llama|ggml[\w-]*?)(\.\d+)*\.(so|dylib|dll)(\.\d+)*")
_SYMBOLS = ("llama_decode", "ggml_backend_dev_count", "ggml_nbytes")  # of libllama, libggml and libggml-base


class Identity(Record, frozen=True, kw_only=True):
    """A build: its commit is what its own ggml says, and here is where its files lie."""

    name: str  # as it was given
    fingerprint: str  # of bindings and libraries: tells builds of one commit apart
    package: str  # the folder `llama_cpp`
    libraries: str  # the folder of its shared libraries


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


class _SymbolInfo(ctypes.Structure):
    """`Dl_info` of <dlfcn.h>."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def loaded(package: str, shared: Any) -> LoadedLibraries:
    """The libraries that functions of `shared`, which the bindings of `package` loaded, really lie in.

    Raises: NativeError where the loader does not say of a function where it lies.
    """
    find = ctypes.CDLL(None).dladdr
    find.argtypes = [ctypes.c_void_p, ctypes.POINTER(_SymbolInfo)]
    paths, info = set(), _SymbolInfo()
    for symbol in _SYMBOLS:
        function = getattr(shared, symbol, None)
        if function is None and symbol != _SYMBOLS[0]:  # a library that exports nothing of another within it
            continue
        if function is None or not find(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info)):
            raise NativeError(
                f"The loader does not say where {symbol} of {package} lies: which llama.cpp this is cannot be known.",
                hint="`mlsd doctor builds` tries every build that is here.",
            )
        paths.add(os.path.realpath(os.fsdecode(info.path)))
    return LoadedLibraries(package=os.path.realpath(package), libraries=tuple(sorted(paths)))


def require(present: LoadedLibraries, folder: str, identity: Identity | None) -> None:
    """Refuse libraries out of another folder, and another build than was asked for. Raises: NativeError."""
    expected = libraries_in(Path(folder if identity is None else identity.libraries))
    unexpected = [path for path in present.libraries if path not in expected]
    if identity is not None and present.package != os.path.realpath(identity.package):
        unexpected.append(present.package)
    if unexpected:
        name = "The installed build" if identity is None else f"Build {identity.name}"
        raise NativeError(
            f"{name} was asked for, but this process loaded {', '.join(unexpected)}.",
            hint="Nothing is measured under another build's name. Look for LD_LIBRARY_PATH, DYLD_LIBRARY_PATH and "
            "LD_PRELOAD; a package that was changed is installed anew with pip's --force-reinstall.",
        )


def libraries_in(folder: Path) -> tuple[str, ...]:
    """The real paths of llama.cpp's libraries in a folder."""
    return tuple(os.path.realpath(path) for path in sorted(folder.glob("*")) if LIBRARY.fullmatch(path.name))


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
    candidates = [path for path in sorted(folder.iterdir()) if _is_llama(path.name)]
    if candidates and not plain.exists():
        plain.symlink_to(candidates[0].name)


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

"""Where files of mlsd lie (those it ships, the user's folder, the cache) and how the small ones are written.

``MLSD_HOME`` names the user's folder (manifest, lock, models made here), ``MLSD_CACHE`` the cache, which can be made
again. Otherwise the platform decides: under Library on macOS, under XDG_DATA_HOME and XDG_CACHE_HOME elsewhere.
"""

import os
import platform
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
import psutil
from filelock import FileLock

from mlsd.errors import InputError

_NAME = "mlsd"
_NAME_OTHERS = "Name folders that you may write with MLSD_HOME and MLSD_CACHE."
_DAY_S = 86_400
_PACKAGE = Path(__file__).parent
_started_in = Path()  # set where the program has left that folder


def data_path(name: str) -> Path:
    """A data file or folder of mlsd: under ``mlsd/data`` in a wheel, at the top level of a checkout."""
    for path in (_PACKAGE / "data" / name, _PACKAGE.parent / name):
        if path.exists():
            return path
    raise InputError(f"mlsd's own file {name} is missing.", hint="Reinstall mlsd: the installation is incomplete.")


def asset_path(name: str) -> Path:
    """The path of a file under ``mlsd/assets`` (prompts, tiny models)."""
    path = _PACKAGE / "assets" / name
    if not path.exists():
        raise InputError(f"mlsd's own asset {name} is missing.", hint="Reinstall mlsd: the installation is incomplete.")
    return path


def user_dir() -> Path:
    """The user's folder of mlsd; it may not exist yet. Raises: InputError where there can be none."""
    return _user_folder("MLSD_HOME", platformdirs.user_data_path)


def cache_dir() -> Path:
    """Where mlsd keeps what can be made again; it may not exist yet. Raises: InputError where there can be none."""
    return _user_folder("MLSD_CACHE", platformdirs.user_cache_path)


def given_path(text: str) -> Path:
    """The file that somebody named, relative to the folder in which the program was started, wherever it runs now."""
    return _started_in / text


def go_to_empty_dir() -> None:
    """Run on in an empty folder: a driver or a build may look for parts of itself in the working directory."""
    global _started_in
    _started_in = Path.cwd()
    os.chdir(empty_dir())


def empty_dir() -> Path:
    """An empty folder for programs that look for parts of themselves where they run; the root where there is none."""
    try:
        folder = cache_dir() / "empty"
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            return folder
    except (InputError, OSError):
        pass
    return Path(Path.cwd().anchor)


def _user_folder(variable: str, usual: Callable[..., Path]) -> Path:
    hint = f"Set {variable} to a folder that you may write."
    try:
        named = os.environ.get(variable)
        folder = Path(named).expanduser() if named else usual(_NAME, appauthor=False)
    except RuntimeError as error:  # neither HOME nor an entry in the password file: usual in containers
        raise InputError(f"User {os.getuid()} has no home folder.", hint=hint) from error
    for ancestor in (folder, *folder.parents):
        if os.path.isdir(ancestor):  # noqa: PTH112 - pathlib's raises where a parent may not be read
            break
        if os.path.lexists(ancestor):
            raise InputError(f"{ancestor} is not a folder.", hint=hint)
    return folder


# --- small files -------------------------------------------------------------------------------------


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk that holds `folder`, which need not exist yet."""
    ancestor = folder.absolute()
    while not ancestor.exists():
        ancestor = ancestor.parent
    return shutil.disk_usage(ancestor).free


def unwritable(path: Path, error: OSError) -> InputError:
    """What the user is told of a file or folder that the system does not let us write."""
    return InputError(f"{error.filename or path} cannot be written: {error.strerror or error}.", hint=_NAME_OTHERS)


@contextmanager
def replacing(path: Path, hint: str, *, make_folder: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """An empty neighbour that takes the place of `path` when the block succeeds and vanishes when it fails.

    Raises: InputError when the folder cannot be written or the disk is full.
    """
    part = path.with_name(f".mlsd.{_this_host()}-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(".mlsd.*.part"):
            with suppress(OSError):
                if _is_left_behind(left):
                    left.unlink()
        try:
            part.touch(mode, exist_ok=False)
            yield part
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.", hint=hint) from error


def _this_host() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _is_left_behind(part: Path) -> bool:
    """Whether whoever wrote this was killed: a process of this host that is gone, or any that paused for a day."""
    host, _, rest = part.name.removeprefix(".mlsd.").partition("-")
    pid = rest.partition("-")[0]
    if host == _this_host() and pid.isdigit():
        return not psutil.pid_exists(int(pid))
    return time.time() - part.stat().st_mtime > _DAY_S


def write_atomically(path: Path, text: str) -> None:
    """Write a text file for its owner alone, seen old or new, never half. Raises: InputError."""
    with replacing(path, _NAME_OTHERS, make_folder=True, mode=0o600) as part:
        part.write_text(text, encoding="utf-8")


def read_json(path: Path, kind: Any) -> Any:
    """The value in a small file of ours, {} where there is none. Raises: InputError when it was damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}.", hint="Delete it: it is written again.") from error


def update_json(path: Path, kind: Any, change: Callable[[Any], None], *, damaged_is_empty: bool = False) -> None:
    """Change the value in a small file of ours while no other process does. Raises: InputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=30):
            try:
                value = read_json(path, kind)
            except InputError:
                if not damaged_is_empty:
                    raise
                value = {}
            change(value)
            encoded = msgspec.json.format(msgspec.json.encode(value, order="sorted"))
            write_atomically(path, encoded.decode() + "\n")
    except OSError as error:
        raise unwritable(path, error) from error

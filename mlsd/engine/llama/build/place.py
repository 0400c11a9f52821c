"""Folders of libraries as the bindings want them: all side by side, libllama under its name without a version."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from mlsd.folders import cache_dir, unwritable


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

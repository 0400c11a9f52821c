"""Folders of libraries as the bindings want them: all side by side, libllama under its name without a version."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from mlsd.engine.llama.build.loaded import stamp
from mlsd.folders import cache_dir


def plain_name(stem: str) -> str:
    """The name by which the bindings look for a library."""
    return {"darwin": f"lib{stem}.dylib", "win32": f"{stem}.dll"}.get(sys.platform, f"lib{stem}.so")


def side_by_side(files: list[Path], source: Path) -> Path:
    """Links to them in one folder of the cache, which a changed file or place makes anew."""
    key = "".join(f"{path} {stamp(path)}" for path in sorted(files))
    folder = cache_dir() / "builds" / hashlib.sha256(f"{source}{key}".encode()).hexdigest()[:16]
    if not folder.is_dir():
        with made(folder) as part:
            for path in files:
                with contextlib.suppress(FileExistsError):  # the first of two of a name
                    (part / path.name).symlink_to(path.resolve())
            name_plainly(part)
    return folder


def name_plainly(folder: Path) -> None:
    """Give libllama the name without a version, by which the bindings look for it."""
    plain = folder / plain_name("llama")
    found = [path for path in sorted(folder.iterdir()) if re.match(r"(lib)?llama\.", path.name)]
    if found and not plain.exists():
        plain.symlink_to(found[0].name)


@contextlib.contextmanager
def made(folder: Path) -> Iterator[Path]:
    """A folder that appears whole or not at all."""
    part = folder.with_suffix(f".{os.getpid()}")
    part.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        with contextlib.suppress(OSError):  # another process was first
            part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)

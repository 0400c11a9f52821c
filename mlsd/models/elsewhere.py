"""Model files that other programs keep on this machine: LM Studio, Ollama, llama.cpp, and any name in the hub's cache.

A file is found by its hash where its name holds one, else by name and size; who uses it checks the hash.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from mlsd.models.manifest import FilePart


def find_elsewhere(repo: str, part: FilePart, hub_cache: Path) -> Path | None:
    """A file that should be `part` of `repo`, in the folder of some program; None where no hash and no size tells."""
    for path in chain(_by_hash(part, hub_cache), _by_name(repo, part, hub_cache)):
        try:
            if path.is_file() and part.n_bytes in (None, path.stat().st_size):
                return path
        except OSError:  # a folder of another user
            continue
    return None


def _by_hash(part: FilePart, hub_cache: Path) -> Iterator[Path]:
    if part.sha256 is not None:
        yield _ollama() / "blobs" / f"sha256-{part.sha256}"
        yield from hub_cache.glob(f"models--*/blobs/{part.sha256}")


def _by_name(repo: str, part: FilePart, hub_cache: Path) -> Iterator[Path]:
    if part.n_bytes is None:
        return
    name, home = Path(part.file).name, Path.home()
    folders = (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models")
    yield from chain.from_iterable(folder.rglob(_literally(name)) for folder in folders)
    caches = [os.environ.get("LLAMA_CACHE"), home / "Library/Caches/llama.cpp", home / ".cache/llama.cpp"]
    for cache in caches:
        if cache:
            yield Path(cache).expanduser() / f"{repo.replace('/', '_')}_{part.file.replace('/', '_')}"
            yield Path(cache).expanduser() / name
    yield from hub_cache.glob(f"models--*/snapshots/*/{_literally(part.file)}")
    yield from _ollama_layers(repo, part.n_bytes)


def _ollama() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models").expanduser()


def _ollama_layers(repo: str, n_bytes: int) -> Iterator[Path]:
    """Layers of this size in the manifests of a repository of this name (`ollama pull hf.co/REPO:TAG`)."""
    for manifest in (_ollama() / "manifests").rglob("*"):
        if manifest.parent.name.lower() != repo.partition("/")[2].lower() or not manifest.is_file():
            continue
        try:
            layers: Iterable[dict[str, object]] = json.loads(manifest.read_bytes())["layers"]
            for layer in layers:
                if layer["size"] == n_bytes:
                    yield _ollama() / "blobs" / str(layer["digest"]).replace(":", "-")
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _literally(name: str) -> str:
    """A name as a pattern that matches nothing else."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)

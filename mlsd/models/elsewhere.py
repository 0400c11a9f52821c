"""Model files that LM Studio, Ollama, llama.cpp and the hub's cache keep, found by hash, or by name and size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec

from mlsd.errors import InputError
from mlsd.models.manifest import FilePart
from mlsd.outside import Count, parse, read_file
from mlsd.records import Record


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
    usual = (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models")
    folders = (*usual, *_chosen_in_lm_studio(home))
    yield from chain.from_iterable(folder.rglob(_literally(name)) for folder in folders)
    caches = [os.environ.get("LLAMA_CACHE"), home / "Library/Caches/llama.cpp", home / ".cache/llama.cpp"]
    for cache in caches:
        if cache:
            yield Path(cache).expanduser() / f"{repo.replace('/', '_')}_{part.file.replace('/', '_')}"
            yield Path(cache).expanduser() / name
    yield from hub_cache.glob(f"models--*/snapshots/*/{_literally(part.file)}")
    yield from _ollama_layers(repo, part.n_bytes)


def _chosen_in_lm_studio(home: Path) -> Iterator[Path]:
    path = home / ".lmstudio" / "settings.json"
    try:
        chosen = parse(read_file(path), _StudioSettings, str(path)).downloads_folder
    except (OSError, InputError):
        return
    if chosen:
        yield Path(chosen).expanduser()


def _ollama() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models").expanduser()


def _ollama_layers(repo: str, n_bytes: int) -> Iterator[Path]:
    """Layers of this size in the manifests of a repository of this name (`ollama pull hf.co/REPO:TAG`)."""
    for manifest in (_ollama() / "manifests").rglob("*"):
        if manifest.parent.name.lower() != repo.partition("/")[2].lower() or not manifest.is_file():
            continue
        try:
            layers = parse(read_file(manifest), _OllamaManifest, str(manifest)).layers
        except (OSError, InputError):
            continue
        yield from (_ollama() / "blobs" / one.digest.replace(":", "-") for one in layers if one.size == n_bytes)


class _StudioSettings(Record, frozen=True, kw_only=True, rename="camel"):
    """What LM Studio keeps of its user's choices: its `settings.json` has `downloadsFolder` (v1ckxy/LMSPLS issue 2)."""

    downloads_folder: str = ""


class _Layer(Record, frozen=True, kw_only=True):
    """A file of a model that Ollama keeps."""

    size: Count
    digest: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+:[0-9a-f]+$")]


class _OllamaManifest(Record, frozen=True, kw_only=True):
    """Ollama's list of them."""

    layers: tuple[_Layer, ...]


def _literally(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)

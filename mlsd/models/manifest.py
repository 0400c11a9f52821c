"""gguf_manifest.toml, the shipped one and the user's, as checked `ModelEntry` values; no network, no GGUF is opened."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mlsd.errors import ManifestError, did_you_mean
from mlsd.folders import data_path, user_dir
from mlsd.outside import convert, read_toml
from mlsd.records import Record

Role = Literal["moe-target", "dense-target", "draft", "head"]
QuantizationType = Literal[
    "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q3_K_M", "Q2_K"
]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Bytes = Annotated[int, Meta(gt=0)]
Count = Annotated[int, Meta(gt=0)]
Name = Annotated[str, Meta(min_length=1)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
# What becomes a part of a path; \Z where $ would let a line's end pass. An id becomes a file's name with a hash in it.
ModelId = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*\Z", max_length=128)]
Repo = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*\Z", max_length=192)]
_STEP = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f]{1,255}"  # of a path that stays where it starts
Inside = Annotated[str, Meta(pattern=rf"^{_STEP}(?:/{_STEP})*\Z", max_length=1024)]

MANIFEST_NAME = "gguf_manifest.toml"


class FilePart(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a model; most models have one, split GGUFs several."""

    file: Inside
    n_bytes: Bytes | None = msgspec.field(name="bytes", default=None)
    sha256: Sha256 | None = None


class ModelEntry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="source"):
    """What every entry of a manifest says; the classes below say how the model comes to this machine."""

    id: ModelId
    name: Name
    architecture: Name  # general.architecture of the GGUF
    quantization: Name
    parameters: Count | None = None
    parameters_active: Count | None = None  # read for one token
    roles: tuple[Role, ...] = ()  # hints; a profile decides
    license: str | None = None
    note: str | None = None
    n_bytes: Bytes | None = msgspec.field(name="bytes", default=None)  # all files together

    @property
    def source(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def parts(self) -> tuple[FilePart, ...]:
        """The files of the model in order; the first is the one that is loaded. None of what is made here."""
        return ()


class Repository(ModelEntry, frozen=True, kw_only=True, tag="huggingface"):
    """A model of a Hugging Face repository."""

    repo: Repo
    revision: Inside | None = None  # commit, tag or branch; None: the head of main
    file: Inside | None = None
    files: tuple[FilePart, ...] = ()  # in place of `file`: the parts of a split model
    sha256: Sha256 | None = None

    @property
    def parts(self) -> tuple[FilePart, ...]:
        if self.file is None:
            return self.files
        return (FilePart(file=self.file, n_bytes=self.n_bytes, sha256=self.sha256),)


class _OneFile(ModelEntry, frozen=True, kw_only=True):
    """A model that is one file."""

    file: Inside
    sha256: Sha256 | None = None

    @property
    def parts(self) -> tuple[FilePart, ...]:
        return (FilePart(file=self.file, n_bytes=self.n_bytes, sha256=self.sha256),)


class Packaged(_OneFile, frozen=True, kw_only=True, tag="package"):
    """A file of an installed package."""

    package: Name  # the distribution's name


class Asset(_OneFile, frozen=True, kw_only=True, tag="asset"):
    """A file of mlsd's own, relative to its assets."""


class LocalFile(_OneFile, frozen=True, kw_only=True, tag="path"):
    """A file of the user's, relative to the manifest that names it."""

    file: Name


class Derived(ModelEntry, frozen=True, kw_only=True):
    """A model that is written on this machine."""


class Quantized(Derived, frozen=True, kw_only=True, tag="quantize"):
    """Another entry, run through llama.cpp's quantizer."""

    base: ModelId
    type: QuantizationType


class Perturbed(Derived, frozen=True, kw_only=True, tag="perturb"):
    """Another entry, its weights times 1 plus noise."""

    base: ModelId
    noise: Annotated[float, Meta(gt=0, le=1)]  # standard deviation
    seed: Seed = 0


class Synthetic(Derived, frozen=True, kw_only=True, tag="synth"):
    """A shape that mlsd knows, with random weights: it measures a machine, its text means nothing."""

    shape: Name
    seed: Seed = 0


_ANY: Any = Repository | Packaged | Asset | LocalFile | Quantized | Perturbed | Synthetic
_SOURCES = ("huggingface", "package", "asset", "path", "quantize", "perturb", "synth")


class Manifest(Record, frozen=True, kw_only=True):
    """All known models by id, in the order of their files."""

    models: dict[str, ModelEntry]
    files: tuple[str, ...] = ()  # where they were read from

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(self.models.values())

    def find(self, model_id: str) -> ModelEntry:
        """The entry of an id. Raises: ManifestError naming the closest ids."""
        if model_id in self.models:
            return self.models[model_id]
        hint = f"{did_you_mean(model_id, self.models, n=3)}`mlsd models list` shows all; a path must exist."
        raise ManifestError(f"No model has the id {model_id!r}.", hint=hint)

    def bases(self, entry: ModelEntry) -> tuple[ModelEntry, ...]:
        """The entries `entry` is made from, nearest first; none for a model that is not made."""
        matches: list[ModelEntry] = []
        while isinstance(entry, Quantized | Perturbed):
            entry = self.models[entry.base]
            matches.append(entry)
        return tuple(matches)


def load_manifest(*, shipped: Path | None = None, user: Path | None = None) -> Manifest:
    """The shipped manifest extended by the user's. Raises: ManifestError naming file, key and value."""
    models: dict[str, ModelEntry] = {}
    files = []
    for path in (shipped or data_path(MANIFEST_NAME), user or user_dir() / MANIFEST_NAME):
        if not path.exists():
            continue
        files.append(str(path))
        for entry in read_manifest(path):
            if entry.id in models:
                raise ManifestError(
                    f"{path}: models.{entry.id} is already defined in {files[0]}.", hint="Give it another id."
                )
            models[entry.id] = entry
    manifest = Manifest(models=models, files=tuple(files))
    for entry in manifest:
        _check_base(manifest, entry)
    return manifest


def read_manifest(path: Path) -> tuple[ModelEntry, ...]:
    """The entries of one file, each checked by itself. Raises: ManifestError naming file, key and value."""
    data = read_toml(path, ManifestError)
    if unknown := sorted(set(data) - {"models"}):
        raise ManifestError(f"{path}: unknown table {unknown[0]!r}.", hint='Entries stand under [models."id"].')
    models = data.get("models", {})
    if not isinstance(models, dict):
        raise ManifestError(f"{path}: models = {models!r} must be a table of entries.")
    return tuple(decode_entry(path, model_id, raw) for model_id, raw in models.items())


def decode_entry(path: Path, model_id: str, raw: Any) -> ModelEntry:
    """Check one entry of `path`. Raises: ManifestError naming file, key and value."""
    key = f"models.{ascii(model_id)[1:-1]}"
    if not isinstance(raw, dict):
        raise ManifestError(f"{path}: {key} = {raw!r} must be a table.")
    if "id" in raw:
        raise ManifestError(f"{path}: {key}.id = {raw['id']!r}: the table's own name is the id.")
    if raw.get("source") not in _SOURCES:
        wrong = f"= {raw['source']!r}: it must be" if "source" in raw else "is missing; it is"
        raise ManifestError(f"{path}: {key}.source {wrong} one of {', '.join(_SOURCES)}.")
    entry: ModelEntry = convert({**raw, "id": model_id}, _ANY, str(path), ManifestError, key=key, forms=_FORMS)
    if isinstance(entry, Repository) and bool(entry.file) == bool(entry.files):
        raise ManifestError(f"{path}: {key} needs either `file` or `files`.")
    if isinstance(entry, LocalFile):
        try:
            entry = msgspec.structs.replace(entry, file=str(path.parent / Path(entry.file).expanduser()))
        except RuntimeError as error:
            raise ManifestError(f"{path}: {key}.file = {entry.file!r}: {error}.") from error
    return entry


_IN_PLACE = "is a path without '..', a leading or doubled '/', a backslash or a control character"
_FORMS = {  # what a text must be that becomes a part of a path
    "id": "has lower-case letters, digits, dots, dashes and underscores only, at most 128",
    "repo": "is OWNER/NAME of letters, digits, dots, dashes and underscores",
    "file": _IN_PLACE,
    "revision": _IN_PLACE,
    "sha256": "has 64 hexadecimal digits",
}


def _check_base(manifest: Manifest, entry: ModelEntry) -> None:
    seen = [entry.id]
    while isinstance(entry, Quantized | Perturbed):
        key = f"models.{entry.id}.base = {entry.base!r}"
        if entry.base not in manifest.models:
            raise ManifestError(f"{' or '.join(manifest.files)}: {key}: no model has this id.")
        if entry.base in seen:
            raise ManifestError(f"{' or '.join(manifest.files)}: {key}: it is made from itself.")
        seen.append(entry.base)
        entry = manifest.models[entry.base]
